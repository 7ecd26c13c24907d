"""Whether this machine can confine stages, and what holds their limits (docs/sandbox.md)."""

from service.settings import Settings
from worker.doctor.check import Context, Finding, failed, not_run, ok, warning
from worker.sandbox import layers
from worker.supervision.limits import delegated_group

_REMEDY = (
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
        remedy=_REMEDY,
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
