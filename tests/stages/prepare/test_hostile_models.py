"""Hostile models through `prepare`, and through `train` where only the weights are hostile."""

from pathlib import Path
from typing import Any, Final

import pytest

from tests.stages.prepare import hostile_models
from tests.stages.prepare.hostile_models import Hostile
from tests.stages.support import Run, StageServer, spec, write_request

ALL: Final = [
    pytest.param(each, id=f"{kind}-{each.name}")
    for kind, table in (
        ("config", hostile_models.CONFIGS),
        ("weights", hostile_models.WEIGHTS),
        ("tokenizer", hostile_models.TOKENIZERS),
    )
    for each in table
]


class TestPrepare:
    @pytest.mark.parametrize("hostile", ALL)
    def test_each_ends_with_a_code_that_blames_the_model(
        self, hostile: Hostile, models: Path, run: Run
    ) -> None:
        hostile.change(models / "tiny")
        body = spec(models / "tiny", max_train_samples=2) | {"resources": {"gpus": 0}}
        failure = run(body).failure
        assert failure.code is hostile.code, failure.message
        assert hostile.says in failure.message
        assert str(models.parent / "job") not in failure.message, (
            "our folders mean nothing to users"
        )


class TestTrain:
    @pytest.mark.parametrize("hostile", hostile_models.TRAINED, ids=lambda each: each.name)
    def test_what_only_the_weights_show(
        self, hostile: Hostile, models: Path, run: Run, server: StageServer, tmp_path: Path
    ) -> None:
        hostile.change(models / "tiny")
        training = {"max_steps": 1, "save_strategy": "no", "precision": "fp32"}
        body = spec(models / "tiny", max_train_samples=4)
        body |= {"training": training, "resources": {"gpus": 0}}
        ended = run(body)
        if ended.status == 0:
            given: dict[str, Any] = {"stage": "train", "prepared": ended.result}
            request = write_request(tmp_path / "training", body, **given)
            ended = server.run(request)
        failure = ended.failure
        assert failure.code is hostile.code, failure.message
        assert hostile.says in failure.message
