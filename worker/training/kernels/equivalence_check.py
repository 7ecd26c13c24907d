"""Whether a fast path computes the same as the plain one on this machine.

The result of a fast path may depend on the GPU, its driver and the libraries, and not all of them
can be tested in advance. So the first job of a kind compares each path with the plain one on three
short batches. A path that differs or fails is not used, and an event reports it. The verdict is
kept for later jobs of that kind in the same project.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from service.contract.stage.events import Notice, StageEvent
from worker.storage import verdicts
from worker.training.distributed.ranks import Ranks
from worker.training.reproducibility import rng

CHECK: Final = 2
"""Raised when the comparison learns to see more: older verdicts, and numbers that were computed by
them, are not used again."""
_ROUNDING: Final = 3.0
"""A fast path may be this many times as far from the exact numbers as the plain one. Two orders of
summation differ by a factor below 2; a sequence that attends to another by many times that."""
_FLOOR: Final = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Relative difference that is allowed even where the plain path happens to be exact."""
_SMALL: Final = 0.01
"""A tensor whose norm is below this share of the largest in its group is compared relative to that
share: it may be nothing but rounding."""


class Numbers(NamedTuple):
    """The results of one path; all paths give them in the same order."""

    outputs: Sequence[torch.Tensor]
    gradients: Sequence[torch.Tensor] = ()


@dataclass(frozen=True)
class Verdict:
    """The verdict on one path in one kind of job."""

    difference: float = 0.0
    """The largest relative difference."""
    allowed: float = 0.0
    error: str | None = None
    """Why the path failed; nothing was compared then."""
    found: dict[str, Any] = field(default_factory=dict)
    """What the comparison found out and the path needs; plain JSON values."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.difference):  # JSON has no such numbers
            object.__setattr__(self, "difference", sys.float_info.max)

    @property
    def excess(self) -> float:
        return self.difference - self.allowed

    @property
    def same(self) -> bool:
        return self.error is None and self.excess <= 0

    def __str__(self) -> str:
        if self.error is not None:
            return f"fails: {self.error}"
        verb = "agrees" if self.same else "differs"
        return f"{verb}: relative difference {self.difference:.2g}, allowed {self.allowed:.2g}"


def compare(exact: Numbers, plain: Numbers, fast: Numbers, dtype: torch.dtype) -> Verdict:
    """The verdict on the tensor that differs most. `exact`: the plain path in float32; `dtype`:
    what the others were computed in. Numbers that are not finite always differ."""
    worst: Verdict | None = None
    for right, usual, found in zip(exact, plain, fast, strict=True):
        if [each.shape for each in found] != [each.shape for each in right]:
            return Verdict(error="its numbers have other shapes")
        for verdict in _verdicts(right, usual, found, _FLOOR[dtype]):
            if worst is None or verdict.excess > worst.excess:
                worst = verdict
    return worst or Verdict()


def _verdicts(
    exact: Sequence[torch.Tensor],
    plain: Sequence[torch.Tensor],
    fast: Sequence[torch.Tensor],
    floor: float,
) -> Iterator[Verdict]:
    least = _SMALL * max((float(each.norm()) for each in exact), default=0.0)
    for right, usual, found in zip(exact, plain, fast, strict=True):
        size = max(float(right.norm()), least)
        if size:
            rounding = float((usual.float() - right).norm()) / size
            difference = float((found.float() - right).norm()) / size
            yield Verdict(difference, _ROUNDING * rounding + floor)
        elif found.any():
            yield Verdict(math.inf)


@dataclass
class EquivalenceChecker:
    """Checks paths, or reads the verdicts of earlier jobs of the same kind."""

    folder: Path
    device: torch.device
    ranks: Ranks
    send: Callable[[StageEvent], None]

    def check(
        self, path: str, kind: Mapping[str, Any], measure: Callable[[], Verdict], instead: str
    ) -> Verdict | None:
        """The verdict if the path may be used, in every process; otherwise sends an event and
        returns None. All processes must call this, in the same order.

        `kind`: the properties of the job that decide, plain JSON values; `instead` is for the
        event: what happens without the path, and what the user can do.
        """
        found = self.ranks.all_gather(self._verdict(path, kind, measure))
        against = next((each for each in found if not each.same), None)
        if against is None:
            return found[0]
        message = f"The fast path `{path}` is not used: it {against}. {instead}"
        self.send(Notice(message=message, data={"fast_path": path, **asdict(against)}))
        return None

    def _verdict(
        self, path: str, kind: Mapping[str, Any], measure: Callable[[], Verdict]
    ) -> Verdict:
        key = self._key(path, kind)
        known = _read(self.folder, key)
        if known is not None:
            return known
        try:
            with rng.preserved():
                verdict = measure()
        # Libraries and compilers raise all kinds of errors where they do not support a path.
        except Exception as error:
            verdict = Verdict(error=f"{type(error).__name__}: {str(error).strip()[:500]}")
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if (
            verdict.error is None and self.ranks.is_main_process
        ):  # a failed path is tried again next time
            verdicts.write(self.folder, key, asdict(verdict))
        return verdict

    def _key(self, path: str, kind: Mapping[str, Any]) -> dict[str, Any]:
        on_gpu = self.device.type == "cuda"
        return {
            "check": CHECK,
            "path": path,
            "kind": kind,
            "versions": {name: version(name) for name in ("torch", "transformers")},
            "device": torch.cuda.get_device_name(self.device) if on_gpu else self.device.type,
            "cuda": torch.version.cuda,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "float32": torch.backends.cuda.matmul.fp32_precision,
        }


def _read(folder: Path, key: Mapping[str, Any]) -> Verdict | None:
    """None if there is no verdict, or a damaged one."""
    known = verdicts.read(folder, key)
    try:
        return None if known is None else Verdict(**known)
    except TypeError:
        return None
