"""Draws the figures of searches."""

import json

from service.api.searches.plot_cache import Drawing
from service.errors import NoPlotError


def draw(drawing: Drawing) -> str:
    """The figure as plotly's JSON. Raises NoPlotError."""
    # Takes 3 s and 200 MB, which a process without plots does without.
    from service.studies import figures

    try:
        drawn = figures.figure(
            drawing.name, drawing.space, drawing.objectives, drawing.trials, drawing.metric
        )
    except figures.NoFigureError as error:
        raise NoPlotError(str(error)) from error
    return json.dumps(drawn)
