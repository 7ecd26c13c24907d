"""TensorBoard's event file of a training: the same numbers as `log_history`, under the tags that
transformers' `TensorBoardCallback` gives them."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from worker.training.checkpointing.state import disk_full_explained
from worker.training.reporting.log_history import WALL_TIME

FOLDER: Final = "tensorboard"
_GROUPS: Final = ("eval", "test")
_VERSION: Final = "brain.Event:2"
_NO_VALUES: Final = ("step", WALL_TIME)


def write(file: Path, history: Sequence[Mapping[str, float]]) -> None:
    """Replace `file`. The same history gives the same bytes."""
    from tensorboardX import RecordWriter
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    start = history[0][WALL_TIME] if history else time.time()
    events = [Event(wall_time=start, file_version=_VERSION)]
    for entry in history:
        values = [
            Summary.Value(tag=_tag(name), simple_value=value)
            for name, value in entry.items()
            if name not in _NO_VALUES
        ]
        at, step = entry[WALL_TIME], int(entry["step"])
        events.append(Event(wall_time=at, step=step, summary=Summary(value=values)))
    file.parent.mkdir(parents=True, exist_ok=True)
    with disk_full_explained("TensorBoard's event file was written"):
        records = RecordWriter(str(file))
        for event in events:
            records.write(event.SerializeToString())
        records.close()


def _tag(name: str) -> str:
    """`eval_loss` → `eval/loss`, `loss` → `train/loss`."""
    group, _, rest = name.partition("_")
    return f"{group}/{rest}" if rest and group in _GROUPS else f"train/{name}"
