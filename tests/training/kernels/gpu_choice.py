"""What the choice of a GPU's kernel is given, on a CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch

from service.contract.spec.spec import JobSpec
from tests.training.support.jobs import Recorder
from worker.training.distributed.ranks import Ranks
from worker.training.fast_paths import FastPaths
from worker.training.kernels import gpu_padding_free
from worker.training.kernels.equivalence_check import EquivalenceChecker

CPU = torch.device("cpu")


def capability(monkeypatch: pytest.MonkeyPatch, given: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: given)


def spec(**training: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "task": "causal-lm",
            "model": {"name_or_path": "/models/tiny"},
            "dataset": {"source": "path", "train": "/data/train.json"},
            "training": {"precision": "fp32", **training},
        }
    )


def given(
    tmp_path: Path, recorder: Recorder, recorded: Any = None
) -> gpu_padding_free.ChoiceInputs:
    ranks = Ranks()
    return gpu_padding_free.ChoiceInputs(
        (),
        FastPaths(ranks, dict(recorded or {})),
        EquivalenceChecker(tmp_path, CPU, ranks, recorder.send),
    )
