from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AttentionMaskInterface, masking_utils
from transformers.masking_utils import sdpa_mask

from tests.training.support.jobs import PLAIN, Job, TinyTask
from tests.training.support.jobs import one_thread as one_thread
from worker.tasks import registry
from worker.training.kernels import attention_masks
from worker.training.reproducibility import rng


@pytest.fixture(autouse=True)
def tiny_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.REGISTRY, "causal-lm", TinyTask())


@pytest.fixture(autouse=True)
def own_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job on a GPU replaces functions of transformers for its whole process, and what it noted of
    its last batch would be taken for that of the next test's model."""
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "sdpa", sdpa_mask)
    monkeypatch.setattr(
        masking_utils, "find_packed_sequence_indices", attention_masks._read_positions
    )
    monkeypatch.setattr(attention_masks, "_hides_nothing", None)
    monkeypatch.setattr(attention_masks, "_counts_up", False)


@pytest.fixture
def make_job(tmp_path: Path, trainings: None) -> Callable[..., Job]:
    made = iter(range(100))

    def make(**training: Any) -> Job:
        parts = {
            name: training.pop(name)
            for name in ("dropout", "train", "validation", "test", "dtype", "resources")
            if name in training
        }
        home = tmp_path / f"home-{next(made)}"
        home.mkdir()
        # `precision` by its own name takes the place of `bf16`.
        plain = {
            name: PLAIN[name] for name in PLAIN if name != "bf16" or "precision" not in training
        }
        return Job(home, {"logging_steps": 1, "learning_rate": 1e-2, **plain, **training}, **parts)

    return make


@pytest.fixture
def sequential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rng, "shuffled", lambda examples, seed, epoch: range(examples))
