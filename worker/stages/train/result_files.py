"""A training's results as files, as the Trainer and the reference scripts write them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.training.checkpointing.state import disk_full_explained


def write(
    folder: Path,
    metrics: Mapping[str, float],
    epoch: float,
    trainer_state: Mapping[str, Any] | None = None,
) -> dict[str, Path]:
    """Write `all_results.json`, one such file for each of train, eval and test that has metrics,
    and `trainer_state.json` if it is given; name → path."""
    contents: dict[str, Mapping[str, Any]] = {"all_results.json": {"epoch": epoch, **metrics}}
    for part, prefixes in (("train", ("train_", "total_")), ("eval", "eval_"), ("test", "test_")):
        own = {name: value for name, value in metrics.items() if name.startswith(prefixes)}
        if own:
            contents[f"{part}_results.json"] = {"epoch": epoch, **own}
    if trainer_state is not None:
        contents["trainer_state.json"] = trainer_state
    folder.mkdir(parents=True, exist_ok=True)
    with disk_full_explained("the results were written"):
        for name, content in contents.items():
            (folder / name).write_text(json.dumps(content, indent=4, sort_keys=True) + "\n")
    return {name: folder / name for name in contents}
