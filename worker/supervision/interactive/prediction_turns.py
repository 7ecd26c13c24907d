"""Which prediction is answered next: of the model in memory first, but no model and no project
keeps the others waiting for ever."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from service.store.interactive.prediction_claims import Waiting

MOST_ANSWERS: Final = 8
MOST_SECONDS: Final = 30.0
"""After so many answers, or so many seconds, another model's turn comes if a request waits for
it."""


@dataclass
class Turn:
    """Of the model in memory."""

    model_key: str | None = None
    project_id: str | None = None
    """Whose prediction was answered last."""
    answers: int = 0
    began: float = 0.0

    def answered(self, model_key: str, project_id: str, now: float) -> None:
        if model_key != self.model_key:
            self.model_key, self.answers, self.began = model_key, 0, now
        self.project_id = project_id
        self.answers += 1

    def next_of(
        self, waiting: Sequence[Waiting], refused: Collection[str], now: float
    ) -> Waiting | None:
        """`waiting`: the oldest first; `refused`: keys of models that cannot be loaded now."""
        able = [each for each in waiting if each.model_key not in refused]
        # Stable: within a project the oldest stays first.
        able.sort(key=lambda each: each.project_id == self.project_id)
        own = [each for each in able if each.model_key == self.model_key]
        others = [each for each in able if each.model_key != self.model_key]
        preferred = [*others, *own] if self.is_over(now) else [*own, *others]
        return preferred[0] if preferred else None

    def is_over(self, now: float) -> bool:
        """Whether another model goes first, if one is asked for."""
        return self.answers >= MOST_ANSWERS or now - self.began > MOST_SECONDS
