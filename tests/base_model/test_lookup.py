"""A model that the Hub does not have, whichever way it says so."""

from pathlib import Path

import httpx2
import pytest
from huggingface_hub import HfApi
from huggingface_hub.utils._http import hf_raise_for_status

from service.contract.failures import FailureCode, StageError
from worker.base_model import files


@pytest.mark.parametrize("headers", [{"X-Error-Code": "RepoNotFound"}, {}], ids=["hub", "mirror"])
def test_a_model_that_does_not_exist(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, headers: dict[str, str]
) -> None:
    def model_info(_api: HfApi, name: str, revision: str | None = None) -> None:
        request = httpx2.Request("GET", f"https://hub.test/api/models/{name}")
        hf_raise_for_status(httpx2.Response(404, headers=headers, request=request))

    monkeypatch.setattr(HfApi, "model_info", model_info)
    with pytest.raises(StageError, match="'org/none' does not exist on the Hub") as raised:
        files.locate("org/none", None, roots=[], setting="model.name_or_path", cache_dir=tmp_path)
    assert raised.value.failure.code is FailureCode.MODEL_NOT_FOUND
