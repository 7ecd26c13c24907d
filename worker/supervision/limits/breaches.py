"""The failures of a stage that has used more than it may."""

from collections.abc import Mapping
from typing import Final

from service.contract.failures import RULES, Failure, FailureCode
from worker.supervision.limits.sizes import size

_ADVICE: Final = (
    RULES[FailureCode.OUT_OF_MEMORY].action
    + " Or, if the machine has more, raise FINETUNE_STAGE_MEMORY_BYTES, restart, then "
    "`finetune retry JOB`."
)
_MORE_PART: Final = 4
"""It was still growing: another time so much is free as it used and a quarter more."""


def too_much_memory(used: int, largest: Mapping[str, int], limit: int) -> Failure:
    """`largest`: what uses most of it, with bytes."""
    most = f"more than the {size(limit)} that FINETUNE_STAGE_MEMORY_BYTES allows it"
    return _out_of_memory(f"{most}: {_named(largest)}", used, limit, processes=dict(largest))


def killed_at_limit(peak: int, limit: int, killed: int) -> Failure:
    """`killed`: the number of processes that the kernel has ended."""
    most = f"and needed more than the {size(limit)} that FINETUNE_STAGE_MEMORY_BYTES allows it"
    text = f"{most}: the kernel ended its processes ({killed})"
    return _out_of_memory(text, peak, limit, processes_killed=killed)


def machine_is_short(used: int, largest: Mapping[str, int], limit: int, free: int) -> Failure:
    """Others use the rest: the stage waits, unless it would be too large without them, too."""
    needed = used + used // _MORE_PART
    text = f"and only {size(free)} of the machine's were left: {_named(largest)}"
    if needed > limit:
        return _out_of_memory(text, used, limit, processes=dict(largest))
    return Failure.from_code(
        FailureCode.INSUFFICIENT_RESOURCES,
        f"The stage used {size(used)} of memory, {text}. It is tried again once {size(needed)} are "
        "free",
        resource="memory",
        bytes_needed=needed,
        bytes_there=free,
        bytes_total=limit,
        processes=dict(largest),
    )


def too_many_processes(count: int, most: int) -> Failure:
    return Failure.from_code(
        FailureCode.PROCESS_LIMIT,
        f"The stage had {count} processes and threads; FINETUNE_STAGE_PROCESSES allows {most}",
        limit=most,
        processes=count,
    )


def _out_of_memory(text: str, used: int, limit: int, **details: object) -> Failure:
    return Failure.from_code(
        FailureCode.OUT_OF_MEMORY,
        f"The stage used {size(used)} of memory, {text}",
        action=_ADVICE,
        limit_bytes=limit,
        used_bytes=used,
        **details,
    )


def _named(largest: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size(count)}" for name, count in largest.items())
