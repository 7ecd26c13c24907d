import math
from typing import Any

import pytest
from pydantic import ValidationError

from service.contract.failures import Failure, FailureCode
from service.contract.stage.events import STAGE_EVENT, Failed, Metric, PhaseChanged
from service.contract.states import Phase


class TestStageEvents:
    @pytest.mark.parametrize(
        "event",
        [
            PhaseChanged(phase=Phase.TRAINING),
            Metric(kind="train", step=3, epoch=0.5, values={"loss": 1.5}),
            Failed(failure=Failure.from_code(FailureCode.DISK_FULL, "no space", free_bytes=0)),
        ],
    )
    def test_round_trip(self, event: object) -> None:
        line = STAGE_EVENT.dump_json(event)  # type: ignore[arg-type]
        assert b"\n" not in line
        assert STAGE_EVENT.validate_json(line) == event

    def test_a_diverged_loss_survives(self) -> None:
        line = Metric(kind="train", step=1, values={"a": math.nan, "b": math.inf}).model_dump_json()
        parsed = STAGE_EVENT.validate_json(line)
        assert isinstance(parsed, Metric)
        assert math.isnan(parsed.values["a"])
        assert parsed.values["b"] == math.inf

    def test_steps_count_from_zero(self) -> None:
        assert STAGE_EVENT.validate_python({"type": "progress", "step": 0, "of": 0})
        assert STAGE_EVENT.validate_python(
            {"type": "metric", "kind": "eval", "step": 0, "values": {}}
        )

    @pytest.mark.parametrize(
        "event",
        [
            {"type": "progress", "step": -1, "of": 3},
            {"type": "progress", "step": 0, "of": -1},
            {"type": "metric", "kind": "eval", "step": -1, "values": {}},
            {"type": "phase", "phase": "training", "more": 1},
        ],
    )
    def test_what_is_out_of_range_or_unknown_is_refused(self, event: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            STAGE_EVENT.validate_python(event)

    def test_an_unknown_event_is_refused(self) -> None:
        with pytest.raises(ValidationError):
            STAGE_EVENT.validate_json('{"type": "rumour"}')
