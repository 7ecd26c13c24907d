"""The figures of searches: each is drawn once for a version of the search, and cached."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final, Literal, NamedTuple, get_args

from anyio import CapacityLimiter

from service.api.http.single_flight import SingleFlight
from service.contract.search.objectives import Objective
from service.contract.search.space import Dimension
from service.store.database import Database
from service.store.scope import Scope
from service.store.searches import state
from service.studies.history import Trial

PlotName = Literal[
    "history", "importances", "slices", "parallel-coordinates", "rungs", "pareto-front"
]
NAMES: Final[tuple[PlotName, ...]] = get_args(PlotName)
"""As `service.studies.figures`, which is not imported for its names alone: it brings Optuna."""
MOST_KEPT: Final = 32
"""Figures of all searches; one of 10,000 trials has up to 0.8 MB."""
_AT_ONCE: Final = 2
"""Drawing takes a whole core."""


class Asked(NamedTuple):
    scope: Scope
    search_id: str
    name: PlotName
    metric: str | None


class Drawing(NamedTuple):
    """Which figure is wanted."""

    name: PlotName
    space: dict[str, Dimension]
    objectives: Sequence[Objective]
    trials: Sequence[Trial]
    metric: str | None
    """The objective to show; None: all, or the first."""


def _drawing(asked: Asked, spec: dict[str, Any], trials: Sequence[Trial]) -> Drawing:
    """Of a stored spec, which names its space and its objectives."""
    return Drawing(
        asked.name,
        {path: Dimension.model_validate(each) for path, each in (spec["space"] or {}).items()},
        [Objective.model_validate(each) for each in spec["objective"] or ()],
        trials,
        asked.metric,
    )


Draw = Callable[[Drawing], str]
"""The figure as JSON. Raises NoPlotError."""
_Version = tuple[str, int, str, str | None]


class Plots:
    """Concurrent requests for one figure share one drawing."""

    def __init__(self, database: Database, draw: Draw) -> None:
        self._database = database
        self._draw = draw
        self._kept: OrderedDict[_Version, str] = OrderedDict()
        self._lock = Lock()
        self._figures = SingleFlight(self._look_up, CapacityLimiter(_AT_ONCE))

    async def get(self, asked: Asked) -> str:
        """The figure as plotly's JSON. Raises SearchNotFoundError, NoPlotError."""
        return await self._figures.get(asked)

    def _look_up(self, asked: Asked) -> str:
        with self._database.read() as session:
            row = state.get(session, asked.scope, asked.search_id)
            version = (row.id, row.version, asked.name, asked.metric)
            kept = self._find(version)
            if kept is not None:
                return kept
            spec = row.spec
            trials = state.history(session, asked.scope, asked.search_id)
        figure = self._draw(_drawing(asked, spec, trials))
        self._keep(version, figure)
        return figure

    def _find(self, version: _Version) -> str | None:
        with self._lock:
            if version in self._kept:
                self._kept.move_to_end(version)
            return self._kept.get(version)

    def _keep(self, version: _Version, figure: str) -> None:
        with self._lock:
            self._kept[version] = figure
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
