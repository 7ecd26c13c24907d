"""Checks that batches without padding give the same losses as padded ones."""

from typing import Any

from worker.doctor.check import Context, Finding, failed, ok, warning
from worker.doctor.jobs import Ended, Jobs, has_bf16_gpu

_TOLERANCES = {"fp32": 2e-3, "bf16": 2e-2}
_REMEDY = "Set `training.padding_free: false` in jobs on this machine, and send this report."


def packing(context: Context) -> Finding:
    """Compare the losses for texts of uneven lengths and for documents that share a block."""
    jobs = Jobs.of(context)
    return _compared(
        context,
        jobs,
        texts=jobs.body("token-classification", dropout=0.0),
        documents=jobs.body("causal-lm", dropout=0.0, separate_documents=True),
    )


def conversations(context: Context) -> Finding:
    """The same for conversations, alone and packed into examples."""
    jobs = Jobs.of(context)
    return _compared(
        context,
        jobs,
        conversations=jobs.body("chat", dropout=0.0, packing="off"),
        **{"packed conversations": jobs.body("chat", dropout=0.0)},
    )


def preferences(context: Context) -> Finding:
    """The same for pairs of answers, of which each is a sequence."""
    jobs = Jobs.of(context)
    pairs = {task: jobs.body(task, dropout=0.0) for task in ("preference", "reward")}
    return _compared(context, jobs, **pairs)


def _compared(context: Context, jobs: Jobs, **bodies: dict[str, Any]) -> Finding:
    # A GPU uses the kernel `varlen` in bfloat16 and `efficient` in float32.
    precision = "bf16" if has_bf16_gpu(context) else "fp32"
    data: dict[str, Any] = {}
    used = []
    for name, body in bodies.items():
        packed, padded = (
            jobs.train(body, padding_free=padding_free, learning_rate=1e-3, precision=precision)
            for padding_free in (None, False)
        )
        for ended in (packed, padded):
            if not ended.finished:
                return failed(f"a job with {name} failed", reason=ended.ending, remedy=_REMEDY)
        data[name] = {"packed": packed.losses, "padded": padded.losses}
        if not _near(packed, padded, _TOLERANCES[precision]):
            reason = f"{name}: losses {packed.losses}, padded {padded.losses}"
            summary = "batches without padding give different losses"
            return failed(summary, reason=reason, remedy=_REMEDY, **data)
        used += [name] if _was_packed(packed) else []
    if not used:
        return warning(
            "no batch was computed without padding",
            reason="; ".join(packed.notices),
            remedy="No action needed: trainings work, but batches of uneven lengths are slower.",
            **data,
        )
    return ok(f"losses are the same without padding: {', '.join(used)}", **data)


def _near(some: Ended, others: Ended, share: float) -> bool:
    pairs = zip(some.losses, others.losses, strict=True)
    return all(abs(one - other) <= share * abs(other) for one, other in pairs)


def _was_packed(ended: Ended) -> bool:
    from service.contract.events import Notice

    return any(event.data.get("padding_free") for event in ended.of(Notice))
