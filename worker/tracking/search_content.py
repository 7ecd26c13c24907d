"""What a search's run contains: points, params, tags and the description, from rows in SQL."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from service.contract.search.objectives import Objective
from service.contract.search.spec import SearchSpec
from service.contract.search.states import TrialState
from service.contract.states import JobState
from service.store.tracking.searches import BestTrial, EndedTrial, TrackedSearch
from service.system.escaping import markdown, markdown_cell, markdown_code
from worker.tracking import run_content
from worker.tracking.run_description import Subject
from worker.tracking.trackers import (
    SEARCH_ID_TAG,
    SEARCH_RUN_TAG,
    Description,
    Point,
)

_FAILURE_TAGS: Final = ("finetune.failure_code", "finetune.failure_message")
END_TAGS: Final = ("finetune.state", *_FAILURE_TAGS, "finetune.outcome_job_id")
_NOT_PARAMS: Final = {"job", "space", "objective", "name", "enqueue"}


def own_tags(search_id: str) -> dict[str, str]:
    """By which the search's run is found; its trials' runs have the first one too."""
    return {SEARCH_ID_TAG: search_id, SEARCH_RUN_TAG: "true"}


def metric_name(objective: Objective) -> str:
    return run_content.accepted_key(objective.metric.removeprefix("eval_"))


@dataclass(frozen=True)
class Progress:
    """How far the trials' scores have been sent, in the order in which the trials ended."""

    ended: int = 0
    """`end_number` of the last one."""
    best: tuple[float | None, ...] = ()
    """The best score of each objective up to there."""

    @classmethod
    def read(cls, text: str | None, objectives: int) -> "Progress":
        """From a run's tag; from the beginning if that is not ours: a point that is sent twice is
        stored once."""
        try:
            found = json.loads(text or "null")
            best = tuple(None if value is None else float(value) for value in found["best"])
            progress = cls(int(found["ended"]), best)
        except (TypeError, ValueError, KeyError):
            progress = cls()
        return progress if len(progress.best) == objectives else cls(0, (None,) * objectives)

    def text(self) -> str:
        return json.dumps({"ended": self.ended, "best": self.best})


def points(
    objectives: Sequence[Objective], trials: Iterable[EndedTrial], progress: Progress
) -> tuple[list[Point], Progress]:
    """The points of these trials, and the progress after them.

    `best_…` is over the number of trials that have ended: MLflow takes the value at the highest
    step for the newest one, and trials do not end in the order of their numbers.
    """
    sent: list[Point] = []
    best = list(progress.best)
    ended = progress.ended
    for trial in trials:
        ended = trial.end_number
        for index, (objective, score) in enumerate(
            zip(objectives, trial.scores or [], strict=False)
        ):
            value, so_far = float(score), best[index]
            if not math.isfinite(value):
                continue
            if so_far is None or objective.is_better(value, so_far):
                best[index] = so_far = value
            name = metric_name(objective)
            sent.append(Point(f"best_{name}", so_far, trial.end_number, trial.ended_at))
            sent.append(Point(f"trial_{name}", value, trial.number, trial.ended_at))
    return sent, Progress(ended, tuple(best))


def description(search: TrackedSearch, spec: SearchSpec) -> Description:
    space = {
        path: dimension.model_dump(mode="json", exclude_defaults=True)
        for path, dimension in spec.dimensions.items()
    }
    return Description(
        params=dict(_params(spec))
        | {f"space.{path}": json.dumps(given) for path, given in space.items()},
        tags=_tags(search, spec),
        texts={"search/space.json": _json(space), "search/spec.json": _json(search.spec)},
        datasets=(),
        note=_note(search, spec),
        subject=Subject("Search", search.id),
    )


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _params(spec: SearchSpec) -> Iterator[tuple[str, str]]:
    """`sampler.seed`, `pruner.name`, and so on. `max_trials` is the first one: a param cannot
    change when the search is extended."""
    for name in type(spec).model_fields:
        if name not in _NOT_PARAMS:
            yield from run_content.flat(getattr(spec, name), name)
    for objective in spec.objectives:
        yield f"objective.{objective.metric}", objective.goal


def _tags(search: TrackedSearch, spec: SearchSpec) -> dict[str, str]:
    counts = {
        f"finetune.trials_{state.value}": str(search.counts.get(state, 0)) for state in TrialState
    }
    own = {
        **own_tags(search.id),
        "finetune.task": spec.job.task.type,
        "finetune.model": spec.job.model.title,
        "finetune.trials": str(search.made),
        "finetune.max_trials": str(search.max_trials),
    }
    best = {}
    if search.best:
        best["finetune.best_trial"] = ", ".join(str(trial.number) for trial in search.best)
        best["finetune.best_job_id"] = search.best[0].job_id or ""
    return run_content.origin_tags(spec.job, search.id) | counts | own | best


def end_tags(search: TrackedSearch) -> dict[str, str]:
    failure = search.failure or {}
    values = (
        search.state,
        failure.get("code"),
        failure.get("message"),
        (search.outcome or {}).get("job_id"),
    )
    return {key: str(value) for key, value in zip(END_TAGS, values, strict=True) if value}


def _note(search: TrackedSearch, spec: SearchSpec) -> str:
    lines = [
        Subject("Search", search.id).line(markdown_code(search.id)),
        *_outcome(search),
        f"- Task: {markdown_code(spec.job.task.type)}",
        f"- Model: {markdown_code(spec.job.model.title)}",
        f"- Trials: {search.made:,} of {search.max_trials:,}{_counts(search.counts)}",
        f"- Sampler: {markdown_code(spec.sampler.name)}, pruner {markdown_code(spec.pruner.name)}",
        *_table(search.best, spec),
    ]
    heading = [markdown_code(spec.name), ""] if spec.name else []
    return "\n".join([*heading, *lines])


def _outcome(search: TrackedSearch) -> Iterator[str]:
    if search.ended_at is None:
        return
    if search.failure and search.state == JobState.FAILED:
        code, message = search.failure["code"], search.failure["message"]
        yield f"- Failed: {markdown_code(code)}. {markdown(message)}"
        if search.failure.get("action"):
            yield f"- What to do: {markdown(search.failure['action'])}"
        return
    yield f"- Result: {search.state}"


def _counts(counts: Mapping[str, int]) -> str:
    parts = [f"{counts[state]:,} {state.value}" for state in TrialState if counts.get(state)]
    return f" ({', '.join(parts)})" if parts else ""


def _table(best: Sequence[BestTrial], spec: SearchSpec) -> Iterator[str]:
    """The best trials: a row for each, a column for each score and each field that varies."""
    if not best:
        return
    metrics = [objective.metric for objective in spec.objectives]
    paths = [path for path in spec.dimensions if any(path in trial.values for trial in best)]
    heads = ["best trial", *metrics, *paths]
    yield from ("", f"| {' | '.join(map(markdown_cell, heads))} |", "|---" * len(heads) + "|")
    for trial in best:
        cells = [str(trial.number), *(f"{float(score):.6g}" for score in trial.scores or [])]
        cells += [_cell(trial.values[path]) if path in trial.values else "" for path in paths]
        yield f"| {' | '.join(cells)} |"


def _cell(value: Any) -> str:
    shown = f"{value:.4g}" if isinstance(value, float) else value
    return markdown_cell(shown if isinstance(shown, str) else json.dumps(shown))
