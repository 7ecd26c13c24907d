"""The metrics of a model card: which ones it reports, and their tables."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from service.contract.spec.dataset import HubDataset
from service.contract.spec.spec import JobSpec
from service.contract.stage.stages import StageRequest, TrainResult
from service.contract.tasks.tasks import TASKS
from service.system import escaping

_EVAL_PREFIX: Final = "eval_"
_TEST_PREFIX: Final = "test_"
_MOST_ROWS: Final = 50
_THRESHOLD: Final = "null_score_diff_threshold"

Numbers = Mapping[str, float]


def reported(spec: JobSpec, metrics: Numbers) -> dict[str, float]:
    """The task's metrics of the validation sets, without the Trainer's prefix; NaN and infinity are
    left out."""
    known = [set_ + name for set_ in sets(spec) for name in TASKS[spec.task.type].metrics]
    return _finite(known, _EVAL_PREFIX, metrics)


def tested(spec: JobSpec, metrics: Numbers) -> dict[str, float]:
    """The same of the test split."""
    return _finite(TASKS[spec.task.type].metrics, _TEST_PREFIX, metrics)


def _finite(names: Iterable[str], prefix: str, metrics: Numbers) -> dict[str, float]:
    found = {name: metrics.get(prefix + name) for name in names}
    return {n: value for n, value in found.items() if value is not None and math.isfinite(value)}


def types(spec: JobSpec, metrics: Numbers) -> list[str]:
    """The kinds of the metrics, independent of the set."""
    names = [*reported(spec, metrics), *tested(spec, metrics)]
    return list(dict.fromkeys(n for n in (measured(spec, name) for name in names) if n != "loss"))


def measured(spec: JobSpec, name: str) -> str:
    return name.removeprefix(set_of(spec, name))


def sets(spec: JobSpec) -> dict[str, str]:
    """The prefix of each validation set's metrics → the name of its split in the data."""
    validation: Any = spec.dataset.validation
    if validation is None and spec.dataset.validation_split_percentage is not None:
        train = spec.dataset.train if isinstance(spec.dataset, HubDataset) else "train"
        return {"": f"{spec.dataset.validation_split_percentage} % of {train}"}
    several = validation if isinstance(validation, dict) else {"": validation}
    if isinstance(spec.dataset, HubDataset):
        return {f"{name}_" if name else "": str(split) for name, split in several.items()}
    return {f"{name}_" if name else "": f"validation {name}".strip() for name in several}


def set_of(spec: JobSpec, metric: str) -> str:
    """The metric's prefix: the longest that fits, because one may be a prefix of another."""
    return max(filter(metric.startswith, sets(spec)), key=len, default="")


def test_split(spec: JobSpec) -> str:
    return str(spec.dataset.test) if isinstance(spec.dataset, HubDataset) else "test"


# ---- text ---------------------------------------------------------------------------------------


def section(request: StageRequest, trained: TrainResult) -> str:
    spec = request.spec
    final, test = reported(spec, trained.metrics), tested(spec, trained.metrics)
    parts = ["## Results"]
    if final:
        parts += ["On the validation split:", _changes(final, reported(spec, trained.baseline))]
    if test:
        rows = [[name, number(value)] for name, value in test.items()]
        parts += ["On the test split:", table(["metric", "value"], rows)]
    if not final and not test:
        parts.append("This model was not evaluated: the job had no validation split.")
    parts += _threshold(request, trained)
    parts += _by_step(spec, _history(request, trained))
    return "\n\n".join(parts)


def _changes(final: Numbers, baseline: Numbers) -> str:
    rows = [
        [name, number(baseline[name]) if name in baseline else "n/a", number(value)]
        for name, value in final.items()
    ]
    return table(["metric", "before training", "after training"], rows)


def _threshold(request: StageRequest, trained: TrainResult) -> list[str]:
    """A sentence about the threshold, if the model has one."""
    assert trained.output_dir is not None, "a job without a model has no card"
    folder = request.workspace / trained.output_dir
    for file in (folder / "config.json", folder / "base_model_config" / "config.json"):
        if file.is_file():
            found = json.loads(file.read_bytes()).get(_THRESHOLD)
            if found is not None:
                shown = escaping.markdown_code(str(found))
                return [
                    "These are the scores with the threshold that was best on the validation "
                    f"split: a question has no answer when its score for that is above {shown} "
                    f"(`{_THRESHOLD}` in the configuration)."
                ]
    return []


def _history(request: StageRequest, trained: TrainResult) -> list[dict[str, float]]:
    """The training's log history; empty without its file."""
    assert trained.output_dir is not None
    file = (request.workspace / trained.output_dir).parent / "results" / "trainer_state.json"
    if not file.is_file():
        return []
    history: list[dict[str, float]] = json.loads(file.read_bytes())["log_history"]
    return history


def _by_step(spec: JobSpec, history: Sequence[Mapping[str, float]]) -> list[str]:
    """A table of all evaluations, if there are more than the first and the last."""
    evaluations: dict[int, dict[str, float]] = {}
    losses: dict[int, float] = {}
    loss = math.nan
    for entry in history:
        step = int(entry["step"])
        loss = entry.get("loss", loss)
        found = reported(spec, entry)
        if found:
            evaluations[step] = {"epoch": entry["epoch"], **found}
            losses[step] = loss
    if len(evaluations) < 3:
        return []
    names = [name for name in next(iter(evaluations.values())) if name != "epoch"]
    rows = [
        [str(step), number(found["epoch"]), _shown(losses[step])]
        + [_shown(found.get(name, math.nan)) for name in names]
        for step, found in _spread(sorted(evaluations.items()))
    ]
    heading = "Evaluations during training, each with the weights of its step:"
    if len(rows) < len(evaluations):
        heading = f"{heading[:-1]} ({len(rows)} of {len(evaluations)}):"
    return [heading, table(["step", "epoch", "training loss", *names], rows)]


def _spread(
    rows: Sequence[tuple[int, dict[str, float]]],
) -> Sequence[tuple[int, dict[str, float]]]:
    """At most `_MOST_ROWS` rows, evenly spaced, including the first and the last."""
    if len(rows) <= _MOST_ROWS:
        return rows
    return [rows[n * (len(rows) - 1) // (_MOST_ROWS - 1)] for n in range(_MOST_ROWS)]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column is text, the others are numbers."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    escaped = ([*map(escaping.markdown, cells)] for cells in [head, *rows])
    lines = [next(escaped), rule, *escaped]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def number(value: float) -> str:
    return f"{value:.4f}".rstrip("0").rstrip(".")


def _shown(value: float) -> str:
    return number(value) if math.isfinite(value) else "n/a"
