"""The files of an ended search in MLflow: all its trials, and Optuna's figures of them."""

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import structlog

from service.contract.search.spec import SearchSpec
from service.contract.search.states import TrialState
from service.store.database import Database
from service.store.tables.searches import SearchTrialRow
from service.store.tracking import searches as store
from service.studies import plot_page
from service.studies.history import Trial

_PAGE: Final = 1000
_FIXED_COLUMNS: Final = ("number", "state", "origin", "job_id")
_LAST_COLUMNS: Final = ("score_step", "reason", "created_at", "ended_at")
_Reports = dict[int, float | None]
_log = structlog.get_logger(__name__)


def write(database: Database, search_id: str, spec: SearchSpec, folder: Path) -> dict[str, Path]:
    """Write the files into `folder`; artifact name → file."""
    trials: list[Trial] = []
    files = {f"search/trials.{ending}": folder / f"trials.{ending}" for ending in ("json", "csv")}
    with ExitStack() as stack:
        opened = [
            stack.enter_context(file.open("w", encoding="utf-8", newline=""))
            for file in files.values()
        ]
        as_json, as_csv = opened
        metrics = (objective.metric for objective in spec.objectives)
        columns = [*_FIXED_COLUMNS, *spec.dimensions, *metrics, *_LAST_COLUMNS]
        table = csv.DictWriter(as_csv, columns, lineterminator="\n")
        table.writeheader()
        separator = "[\n"
        for row, reports in _trials(database, search_id):
            as_json.write(separator + json.dumps(_entry(row, reports), ensure_ascii=False))
            separator = ",\n"
            table.writerow(_line(row, spec))
            trials.append(_trial(row, reports))
        as_json.write("\n]\n" if trials else "[]\n")
    return files | _figures(search_id, spec, trials, folder)


def _trials(database: Database, search_id: str) -> Iterator[tuple[SearchTrialRow, _Reports]]:
    """All trials by number, with their reports: resource → value."""
    last = -1
    while True:
        with database.read() as session:
            rows = store.trials_after(session, search_id, last, _PAGE)
            if not rows:
                return
            last = rows[-1].number
            reports = store.reports_of(session, search_id, rows[0].number, last)
        for row in rows:
            yield row, reports.get(row.number, {})


def _entry(row: SearchTrialRow, reports: _Reports) -> dict[str, Any]:
    return {
        "number": row.number,
        "state": row.state,
        "origin": row.origin,
        "job_id": row.job_id,
        "values": row.values,
        "scores": row.scores,
        "score_step": row.score_step,
        "reason": row.reason,
        "failure": row.failure,
        "created_at": row.created_at.isoformat(),
        "ended_at": row.ended_at and row.ended_at.isoformat(),
        "reports": [{"resource": resource, "value": value} for resource, value in reports.items()],
    }


def _line(row: SearchTrialRow, spec: SearchSpec) -> dict[str, Any]:
    line = {name: getattr(row, name) for name in (*_FIXED_COLUMNS, *_LAST_COLUMNS)}
    metrics = [objective.metric for objective in spec.objectives]
    scores = dict(zip(metrics, row.scores or [], strict=False))
    values = {
        path: value if isinstance(value, str | int | float) else json.dumps(value)
        for path, value in row.values.items()
        if path in spec.dimensions
    }
    times = {name: line[name] and line[name].isoformat() for name in ("created_at", "ended_at")}
    return line | values | scores | times


def _trial(row: SearchTrialRow, reports: _Reports) -> Trial:
    return Trial(
        number=row.number,
        values=row.values,
        state=TrialState(row.state),
        scores=None if row.scores is None else [float(score) for score in row.scores],
        reports={
            resource: float("nan") if value is None else value
            for resource, value in reports.items()
        },
        attrs=row.attrs,
    )


def _figures(
    search_id: str, spec: SearchSpec, trials: Sequence[Trial], folder: Path
) -> dict[str, Path]:
    """Those that are possible: each needs trials of its own kind."""
    try:
        # Imported late: Optuna and Plotly take a second, and few messages need them.
        from service.studies import figures
    except ImportError as error:
        _log.warning("mlflow.figures_unavailable", search_id=search_id, error=str(error))
        return {}

    written: dict[str, Path] = {}
    for name in figures.FIGURE_NAMES:
        try:
            drawn = figures.figure(name, spec.dimensions, spec.objectives, trials)
        except figures.NoFigureError:
            continue
        except Exception:
            # A figure that cannot be drawn must not keep the run from its end.
            _log.exception("mlflow.figure_failed", search_id=search_id, figure=name)
            continue
        file = folder / f"{name}.html"
        file.write_bytes(plot_page.render(json.dumps(drawn), f"{name} of {search_id}"))
        written[f"figures/{name}.html"] = file
    return written
