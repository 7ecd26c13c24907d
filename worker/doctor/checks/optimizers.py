"""Checks the optimizers of other packages: paged ones of bitsandbytes, 8 and 4 bits of torchao."""

import math

from worker.doctor.check import Context, Finding, failed, ok
from worker.doctor.jobs import Jobs

_TOLERANCE = 0.1
"""Relative to the plain optimizer's last loss: states in 8 or 4 bits are rounded."""


def paged(context: Context) -> Finding:
    """bitsandbytes' paged states in 32 and 8 bits, which it moves between GPU and host."""
    return _against_plain(
        context,
        ("paged_adamw_32bit", "paged_adamw_8bit"),
        "Install the bitsandbytes of constraints.txt, or use `optim: adamw_torch_fused` here.",
    )


def torchao(context: Context) -> Finding:
    return _against_plain(
        context,
        ("adamw_torch_8bit", "adamw_torch_4bit"),
        "torchao compiles its optimizers: install a C++ compiler (gcc and g++; on a GPU also "
        "Python's headers), or use `optim: adamw_torch_fused` here.",
    )


def _against_plain(context: Context, names: tuple[str, ...], remedy: str) -> Finding:
    jobs = Jobs.of(context)
    expected = jobs.train(optim="adamw_torch").losses
    losses = {"adamw_torch": expected}
    for name in names:
        ended = jobs.train(optim=name)
        if not ended.finished:
            return failed(
                f"`optim: {name}` fails", reason=ended.ending, remedy=remedy, losses=losses
            )
        losses[name] = found = ended.losses
        same_start = math.isclose(found[0], expected[0], rel_tol=1e-3)
        if not (same_start and math.isclose(found[-1], expected[-1], rel_tol=_TOLERANCE)):
            reason = f"its losses are {found}, those of `adamw_torch` {expected}"
            summary = f"`optim: {name}` does not train as `adamw_torch` does"
            return failed(summary, reason=reason, remedy=remedy, losses=losses)
    return ok(f"{' and '.join(names)} train as adamw_torch does", losses=losses)
