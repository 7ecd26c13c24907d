"""Draws the figures of searches. A stand-in for service.studies.figures until it is merged."""

import json
import math
from typing import Any

from service.api.plots import Drawing
from service.errors import NoPlotError


def draw(drawing: Drawing) -> str:
    """The figure as plotly's JSON. Raises NoPlotError."""
    complete = [trial for trial in drawing.trials if trial.scores]
    if not complete:
        raise NoPlotError("No trial is complete yet.")
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "x": [trial.number for trial in complete],
        "y": [_finite(trial.scores[0]) for trial in complete if trial.scores],
    }
    return json.dumps({"data": [trace], "layout": {"title": {"text": drawing.name}}})


def _finite(score: float) -> float | None:
    return score if math.isfinite(score) else None
