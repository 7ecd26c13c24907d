"""Whether a fast way of computing gives what the plain one gives, on this machine.

A fast path may differ with the GPU, its driver and the libraries, and nobody has tried them all. So
at the first job of a kind each path is compared with the plain one on three short batches, and left
out, with an event, where it differs or fails. What came out is kept for later jobs of the kind.
"""

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from service.contract.events import Notice, StageEvent
from worker.storage import content_cache
from worker.training import rng
from worker.training.distributed.ranks import Ranks

FOLDER: Final = "equivalence"
"""Of the cache directory: one small file for each kind of job and path."""
_KEPT: Final = 500
"""Verdicts on disk, the last used ones."""
_ROUNDING: Final = 3.0
"""A fast path may be this much farther from the exact numbers than the plain one is. Two orders of
summation differ by less than twice; a sequence that sees another gives a multiple of it."""
_FLOOR: Final = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Of the numbers' size, and allowed where the plain path happens to be exact."""
_SMALL: Final = 0.01
"""Of the largest of its group: what is below is compared by this size, for it may be nothing but
rounding."""


class Numbers(NamedTuple):
    """What one way of computing gives; in the same order whichever way it is."""

    outputs: Sequence[torch.Tensor]
    gradients: Sequence[torch.Tensor] = ()


@dataclass(frozen=True)
class Verdict:
    """Of one path in one kind of job."""

    difference: float = 0.0
    """The largest, of the numbers' own size."""
    allowed: float = 0.0
    error: str | None = None
    """Why it failed; nothing was compared then."""
    found: dict[str, Any] = field(default_factory=dict)
    """What the comparison found out and the path needs, plain JSON values."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.difference):  # JSON has no such numbers
            object.__setattr__(self, "difference", sys.float_info.max)

    @property
    def beyond(self) -> float:
        return self.difference - self.allowed

    @property
    def same(self) -> bool:
        return self.error is None and self.beyond <= 0

    def __str__(self) -> str:
        if self.error is not None:
            return f"fails: {self.error}"
        verb = "agrees" if self.same else "differs"
        return (
            f"{verb} by {self.difference:.2g} of its numbers' size; {self.allowed:.2g} is allowed"
        )


def compared(exact: Numbers, plain: Numbers, fast: Numbers, dtype: torch.dtype) -> Verdict:
    """The worst of all tensors. `exact`: the plain path's in float32; `dtype`: what the others were
    computed in. What is not finite differs."""
    worst: Verdict | None = None
    for right, usual, found in zip(exact, plain, fast, strict=True):
        if [each.shape for each in found] != [each.shape for each in right]:
            return Verdict(error="its numbers have other shapes")
        for verdict in _verdicts(right, usual, found, _FLOOR[dtype]):
            if worst is None or verdict.beyond > worst.beyond:
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
class Equivalence:
    """Tries paths out, or remembers what earlier jobs of the kind have found."""

    folder: Path
    device: torch.device
    ranks: Ranks
    send: Callable[[StageEvent], None]

    def agreed(
        self, path: str, kind: Mapping[str, Any], measure: Callable[[], Verdict], instead: str
    ) -> Verdict | None:
        """The verdict if the path may be taken, in every process; None after an event if not. All
        must ask, in the same order.

        `kind`: what of the job decides about it, plain JSON values; `instead` is for the event:
        what is done without the path, and what the user may do.
        """
        verdicts = self.ranks.gathered(self._verdict(path, kind, measure))
        against = next((each for each in verdicts if not each.same), None)
        if against is None:
            return verdicts[0]
        message = f"The fast path `{path}` is left out: it {against}. {instead}"
        self.send(Notice(message=message, data={"fast_path": path, **asdict(against)}))
        return None

    def _verdict(
        self, path: str, kind: Mapping[str, Any], measure: Callable[[], Verdict]
    ) -> Verdict:
        file = self.folder / f"{content_cache.address(self._key(path, kind))}.json"
        known = _read(file)
        if known is not None:
            return known
        try:
            with rng.preserved():
                verdict = measure()
        # Whatever a library raises where a path is not to be had, a compiler's errors included.
        except Exception as error:
            verdict = Verdict(error=f"{type(error).__name__}: {str(error).strip()[:500]}")
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if verdict.error is None and self.ranks.is_first:  # what failed may not fail again
            _write(file, verdict)
        return verdict

    def _key(self, path: str, kind: Mapping[str, Any]) -> dict[str, Any]:
        on_gpu = self.device.type == "cuda"
        return {
            "path": path,
            "kind": kind,
            "versions": {name: version(name) for name in ("torch", "transformers")},
            "device": torch.cuda.get_device_name(self.device) if on_gpu else self.device.type,
            "cuda": torch.version.cuda,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "float32": torch.backends.cuda.matmul.fp32_precision,
        }


def _read(file: Path) -> Verdict | None:
    """None of one that is not there, or damaged."""
    try:
        verdict = Verdict(**json.loads(file.read_bytes()))
        os.utime(file)
    except (OSError, ValueError, TypeError):
        return None
    return verdict


def _write(file: Path, verdict: Verdict) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(asdict(verdict)))
        partial.replace(file)
        ages = sorted(file.parent.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
        for old in ages[_KEPT:]:
            old.unlink(missing_ok=True)
    except OSError as error:  # a full disk: the next job compares again
        sys.stderr.write(f"What was compared is not kept for later jobs: {error}\n")
