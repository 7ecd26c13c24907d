import platform
from pathlib import Path
from typing import Any

import pytest

from worker.doctor.privacy import Cleaner

ENVIRONMENT = {
    "FINETUNE_HOME": "/srv/finetune",
    "FINETUNE_HUB_TOKEN": "abc-my-token",
    "FINETUNE_DATABASE_URL": "postgresql://me:pw@db/finetune",
    "FINETUNE_MALLOC": "auto",
    "CUDA_VISIBLE_DEVICES": "GPU-1a2b3c4d-1111-2222-3333-444455556666",
    "NCCL_DEBUG": "INFO",
    "OMP_NUM_THREADS": "4",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
    "EDITOR": "vi",
}


@pytest.fixture
def cleaner(monkeypatch: pytest.MonkeyPatch) -> Cleaner:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/jane"))
    monkeypatch.setattr(platform, "node", lambda: "node7")
    return Cleaner(ENVIRONMENT)


class TestText:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("token abc-my-token!", "token ***!"),
            ("key wJalrXUtnFEMI", "key ***"),
            ("Bearer hf_AbCdEfGhIjKl", "Bearer ***"),
            ("redis://:pass@host:6379/0", "redis://***@host:6379/0"),
            ("/home/jane/models/x", "~/models/x"),
            ("/srv/finetune/jobs", "$FINETUNE_HOME/jobs"),
            ("node7:12 [0] NCCL INFO", "<host>:12 [0] NCCL INFO"),
            ("node71 is another", "node71 is another"),
            ("GPU-1a2b3c4d-1111-2222-3333-444455556666", "GPU-1a2b3c4d…"),
            ("MIG-1a2b3c4d-1111-2222-3333-444455556666", "MIG-1a2b3c4d…"),
        ],
    )
    def test_is_made_clean(self, cleaner: Cleaner, text: str, shown: str) -> None:
        assert cleaner.text(text) == shown

    def test_so_are_all_strings_of_a_value(self, cleaner: Cleaner) -> None:
        value: dict[str, Any] = {"/home/jane": ["abc-my-token", 1, None, {"a": "/srv/finetune"}]}
        assert cleaner.value(value) == {"~": ["***", 1, None, {"a": "$FINETUNE_HOME"}]}


class TestVariables:
    def test_those_that_matter_are_shown_and_secrets_are_masked(self, cleaner: Cleaner) -> None:
        assert cleaner.variables() == {
            "CUDA_VISIBLE_DEVICES": "GPU-1a2b3c4d…",
            "FINETUNE_DATABASE_URL": "***",
            "FINETUNE_HOME": "$FINETUNE_HOME",
            "FINETUNE_HUB_TOKEN": "***",
            "FINETUNE_MALLOC": "auto",
            "NCCL_DEBUG": "INFO",
            "OMP_NUM_THREADS": "4",
        }
