"""What stages run with here: the memory allocator, the sandbox and what holds their limits."""

from typing import Final

from service.settings import Settings
from worker.doctor.check import Context, Finding, failed, not_run, ok, warning
from worker.processes import allocator
from worker.sandbox import layers
from worker.supervision.limits import delegated_group

_SANDBOX_REMEDY: Final = (
    "Use Linux 6.12 or newer and allow user namespaces; docs/sandbox.md says how. A container "
    "needs a seccomp profile that allows them."
)


def sandbox(_: Context) -> Finding:
    settings = Settings()
    if settings.sandbox == "off":
        return not_run(reason="FINETUNE_SANDBOX is off: stages are not confined")
    used, missing = layers.used(settings), layers.missing(settings)
    shown = " and ".join(used) or "nothing"
    if not missing:
        return ok(f"stages are confined by {shown}", layers=list(used))
    problem = failed if settings.sandbox == "require" else warning
    return problem(
        f"stages are confined by {shown}; something is missing",
        reason=f"A stage could: {'; '.join(missing)}.",
        remedy=_SANDBOX_REMEDY,
        layers=list(used),
        missing=missing,
    )


def limits(_: Context) -> Finding:
    """Of the control group in which this check runs: a worker's start check is in the worker's."""
    try:
        base = delegated_group.find()
    except delegated_group.NoGroupsError as error:
        return ok(
            f"a watching supervisor holds the limits of stages: {error}", control_groups=False
        )
    return ok(f"the kernel holds the limits of stages, in {base}", control_groups=True)


def memory_allocator(context: Context) -> Finding:
    wanted = Settings().malloc
    try:
        found = allocator.find(wanted, with_gpu=bool(context.gpus))
    except allocator.AllocatorError as error:
        return failed(
            "FINETUNE_MALLOC names a library that cannot be loaded",
            reason=str(error),
            remedy="Correct FINETUNE_MALLOC, or unset it: `auto` chooses an installed library.",
        )
    if found == allocator.KEEPING:
        return ok(
            "the C library's, set to keep freed memory; tcmalloc is not installed "
            "(apt: libtcmalloc-minimal4)",
            allocator=found,
        )
    shown = "the C library's, unchanged" if found == allocator.SYSTEM else found
    return ok(shown, allocator=found)
