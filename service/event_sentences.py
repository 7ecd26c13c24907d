"""The history of a job as sentences: one function for each type of event."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from service.contract.states import JobState
from service.system import units

Json = dict[str, Any]


class Narrator:
    """Words events in the order of their numbers: it counts the attempts of each stage."""

    def __init__(self) -> None:
        self._attempts: Counter[str] = Counter()

    def say(self, event: Json) -> str:
        data, kind = event["data"], event["type"]
        if kind == "stage_started":
            self._attempts[data.get("stage", "")] += 1
        elif kind in _RESTARTS:
            self._attempts.clear()
        return sentence_of(kind, data, self._attempts[data.get("stage", "")])


def sentence_of(kind: str, data: Json, attempt: int) -> str:
    """An event of this type, which belongs to this attempt of its stage."""
    sentence = SENTENCES.get(kind)
    if sentence is None:  # of a later release
        return f"{kind} {json.dumps(data, ensure_ascii=False)}"
    return sentence(data, attempt)


_RESTARTS: Final = ("retried", "promote_requested", "publish_requested")


def _submitted(data: Json, _attempt: int) -> str:
    origins = [
        *([f"cloned from {data['cloned_from']}"] if data.get("cloned_from") else []),
        *([f"starts from job {data['base_job']}"] if data.get("base_job") else []),
    ]
    return "; ".join(["submitted", *origins])


def _stage_started(data: Json, attempt: int) -> str:
    gpus = len(data.get("gpus") or ())
    with_gpus = f" with {gpus} GPU{'s' if gpus > 1 else ''}" if gpus else ""
    return f"attempt {attempt} of {data['stage']} started on worker {data['worker']}{with_gpus}"


def _stage_finished(data: Json, _attempt: int) -> str:
    following = data.get("next_stage")
    then = f"; next is {following}" if following else "; the job has succeeded"
    return f"{data['stage']} finished after {units.duration(data['seconds'])}{then}"


def _ended_badly(data: Json, what: str) -> str:
    failure = data["failure"]
    text = f"{what} ({failure['code']}): {failure['message'].rstrip('.')}. "
    if not data["retry"]:
        return text + str(failure.get("action") or "The job has failed.")
    if data.get("next_stage"):
        return f"{text}Starts again at {data['next_stage']}."
    wait = data.get("wait_seconds")
    return text + (f"Retry in {units.duration(wait)}." if wait else "Retry at once.")


def _released(data: Json, attempt: int) -> str:
    what = f"the worker stopped attempt {attempt} of {data['stage']}"
    failure = data.get("failure")
    if failure:
        text = f"{what} ({failure['code']}): {failure['message'].rstrip('.')}"
        return f"{text}. {failure['action']}"
    if data.get("to") == JobState.PAUSED:
        return f"{what}; the job is paused"
    return f"{what}; the job waits for another one"


def _promote_requested(data: Json, _attempt: int) -> str:
    step = (data.get("follow_up") or {}).get("step")
    return f"promotion requested: the checkpoint of step {step} becomes the model{_missing(data)}"


def _publish_requested(data: Json, _attempt: int) -> str:
    hub = (data.get("follow_up") or {}).get("hub") or {}
    return f"push of the model to {hub.get('model_id')} requested{_missing(data)}"


def _missing(data: Json) -> str:
    missing = data.get("missing")
    return f"; made again because it was removed: {', '.join(map(str, missing))}" if missing else ""


def _checkpoint(data: Json, _attempt: int) -> str:
    metric = data.get("metric")
    words = [
        f"checkpoint at step {data['step']:,}",
        units.size(data["bytes"]),
        *([f"metric {units.number(metric, 4)}"] if metric is not None else []),
        *(["best so far"] if data.get("best") else []),
    ]
    return ", ".join(words)


def _resumed(data: Json, _attempt: int) -> str:
    of_job = f" of job {data['job']}" if data.get("job") else ""
    return f"resumed from the checkpoint of step {data['step']:,}{of_job}"


def _workspace_pruned(data: Json, _attempt: int) -> str:
    count = len(data.get("checkpoints") or ())
    return f"the files of the job were removed to make room, {count} checkpoints among them"


def _always(sentence: str) -> Callable[[Json, int], str]:
    return lambda _data, _attempt: sentence


SENTENCES: Final[dict[str, Callable[[dict[str, Any], int], str]]] = {
    "submitted": _submitted,
    "stage_started": _stage_started,
    "stage_finished": _stage_finished,
    "attempt_failed": lambda data, attempt: _ended_badly(
        data, f"attempt {attempt} of {data['stage']} failed"
    ),
    "lease_expired": lambda data, attempt: _ended_badly(
        data, f"attempt {attempt} of {data['stage']} lost its worker"
    ),
    "released": _released,
    "cancel_requested": _always("cancellation requested"),
    "cancelled": _always("cancelled"),
    "pause_requested": _always("pause requested: the worker stops at the next checkpoint"),
    "paused": _always("paused"),
    "resume_requested": _always("resume requested"),
    "retried": lambda data, _attempt: (
        f"retry requested: starts again at {data['stage']}{_missing(data)}"
    ),
    "promote_requested": _promote_requested,
    "publish_requested": _publish_requested,
    "phase": lambda data, _attempt: str(data["phase"]).replace("_", " "),
    "notice": lambda data, _attempt: str(data["message"]),
    "checkpoint": _checkpoint,
    "checkpoint_pruned": lambda data, _attempt: (
        f"checkpoint of step {data['step']:,} removed to make room"
    ),
    "artifact": lambda data, _attempt: f"wrote {data['name']}, {units.size(data['bytes'])}",
    "resumed": _resumed,
    "workspace_pruned": _workspace_pruned,
    "derived": lambda data, _attempt: f"job {data['job']} starts from this job's model",
}

# ---- metrics ----------------------------------------------------------------------------------

_TRAINING: Final = (("loss", "loss"), ("learning_rate", "lr"), ("grad_norm", "grad_norm"))


def of_metric(point: Json) -> str:
    """A row of GET /metrics: a logging step or an evaluation."""
    values = point["values"]
    if point["kind"] == "train":
        return _logged(point, values)
    title = (
        f"evaluation at step {point['step']:,}" if point["step"] else "evaluation before training"
    )
    named = (
        f"{name.removeprefix('eval_')} {units.number(value, 4)}"
        for name, value in sorted(values.items())
    )
    return f"{title}: {', '.join(named)}"


def _logged(point: Json, values: Json) -> str:
    words = [f"step {point['step']:,}"]
    if point.get("epoch") is not None:
        words.append(f"epoch {units.number(point['epoch'])}")
    words += [
        f"{shown} {units.number(values[name])}"
        for name, shown in _TRAINING
        if values.get(name) is not None
    ]
    if values.get("examples_per_second") is not None:
        words.append(f"{units.number(values['examples_per_second'])} examples/s")
    return "  ".join(words)
