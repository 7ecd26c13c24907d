"""`dataset` of the spec: files that submit uploads, or a data set of the Hub."""

import csv
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from service.cli.convert.flags import is_on
from service.cli.convert.report import Conversion
from service.cli.convert.scripts import (
    GLUE_COLUMNS,
    HELD_OUT_PERCENTAGE,
    SUMMARY_COLUMNS,
    Script,
)

_FILES: Final = {"train": "train_file", "validation": "validation_file", "test": "test_file"}
_SWITCHES: Final = {"train": "do_train", "validation": "do_eval", "test": "do_predict"}
_LIMITS: Final = {
    "max_train_samples": "max_train_samples",
    "max_eval_samples": "max_eval_samples",
    "max_val_samples": "max_eval_samples",
    "max_predict_samples": "max_predict_samples",
    "max_test_samples": "max_predict_samples",
}
# Of run_squad: version_2_with_negative → the names of the files in --data_dir.
_SQUAD_FILES: Final = {
    False: {"train": "train-v1.1.json", "validation": "dev-v1.1.json"},
    True: {"train": "train-v2.0.json", "validation": "dev-v2.0.json"},
}
_READABLE_BYTES: Final = 64 * 1024**2


def convert_data(
    conversion: Conversion, script: Script, name: str, wanted: Mapping[str, bool], folder: Path
) -> None:
    """`wanted`: which splits the script reads. Paths become relative to `folder`."""
    if name.startswith("run_squad"):
        _name_squad_files(conversion)
    glue = conversion.take("task_name")
    if name == "run_glue" and glue is not None:
        dataset = _glue(conversion, str(glue).lower(), wanted)
    elif conversion.flags.get("dataset_name"):
        dataset = _from_hub(conversion, wanted)
    else:
        dataset = _from_files(conversion, script, wanted, folder)
    columns = _columns(conversion, script.task, glue, dataset)
    if columns:
        dataset["columns"] = columns
    for flag, field in _LIMITS.items():
        if (value := conversion.take(flag)) is not None:
            dataset[field] = value
    conversion.spec["dataset"] = dataset


def _from_hub(conversion: Conversion, wanted: Mapping[str, bool]) -> dict[str, Any]:
    dataset = {"source": "hub", "name": conversion.take("dataset_name")}
    if config := conversion.take("dataset_config_name"):
        dataset["config"] = config
    percentage = conversion.take("validation_split_percentage")
    if percentage is not None:
        reason = (
            "the script splits only data without a split `validation`; for such data write "
            "`dataset.validation_split_percentage` in place of `dataset.validation`"
        )
        conversion.leave_out("validation_split_percentage", percentage, reason)
    for split in _FILES:
        named = conversion.take(f"{split}_split_name")
        if wanted[split]:
            dataset[split] = named or split
    if wanted["train"] and dataset.get("train") == "train":
        del dataset["train"]  # the default
    for flag in _FILES.values():
        if (given := conversion.take(flag)) is not None:
            conversion.leave_out(flag, given, "the script reads --dataset_name instead")
    return dataset


def _glue(conversion: Conversion, task: str, wanted: Mapping[str, bool]) -> dict[str, Any]:
    dataset: dict[str, Any] = {"source": "hub", "name": "nyu-mll/glue", "config": task}
    if task != "mnli":
        dataset |= {split: split for split in ("validation", "test") if wanted[split]}
        return dataset
    if wanted["validation"]:
        kinds = ("matched", "mismatched")
        dataset["validation"] = {kind: f"validation_{kind}" for kind in kinds}
        metric = str(conversion.take("metric_for_best_model", "loss")).removeprefix("eval_")
        if is_on(conversion.flags.get("load_best_model_at_end")):
            conversion.flags["metric_for_best_model"] = f"matched_{metric}"
    if wanted["test"]:
        dataset["test"] = "test_matched"
        conversion.note("predictions are made for `test_matched`; a job has one test split")
    return dataset


def _from_files(
    conversion: Conversion, script: Script, wanted: Mapping[str, bool], folder: Path
) -> dict[str, Any]:
    dataset: dict[str, Any] = {"source": "upload"}
    percentage = conversion.take("validation_split_percentage")
    for split, flag in _FILES.items():
        given = conversion.take(flag)
        if given and wanted[split]:
            dataset[split] = reference(conversion, str(given), folder)
        elif given:
            reason = f"the script does not read it without --{_SWITCHES[split]}"
            conversion.leave_out(flag, given, reason)
    if wanted["validation"] and "validation" not in dataset and script.held_out:
        dataset["validation_split_percentage"] = percentage or HELD_OUT_PERCENTAGE
    return dataset


def reference(conversion: Conversion, given: str, folder: Path) -> str:
    """As submit takes it: `./name`, from the spec's folder."""
    path = Path(given).expanduser()
    if not path.is_file():
        conversion.note(f"{given} is not here: it must be when `finetune submit` uploads it")
    conversion.columns_from = conversion.columns_from or path
    relative = Path(os.path.relpath(path, folder)).as_posix()
    return relative if relative.startswith("../") else f"./{relative}"


def _name_squad_files(conversion: Conversion) -> None:
    """--predict_file is its validation data; files are found in --data_dir."""
    if (given := conversion.take("predict_file")) is not None:
        conversion.flags["validation_file"] = given
    folder = conversion.take("data_dir")
    if folder is None:
        return
    task = conversion.spec["task"]
    negative = isinstance(task, dict) and is_on(task.get("version_2_with_negative"))
    names = _SQUAD_FILES[negative]
    for split, usual in names.items():
        flag = _FILES[split]
        conversion.flags[flag] = str(Path(str(folder)) / str(conversion.flags.get(flag, usual)))


def _columns(
    conversion: Conversion, task: str, glue: Any, dataset: Mapping[str, Any]
) -> dict[str, str]:
    if task == "text-classification":
        return _text_columns(conversion, glue, dataset)
    if task == "token-classification":
        text, tags = (conversion.take(f"{kind}_column_name") for kind in ("text", "label"))
        found = {"tokens": text or "tokens", "tags": tags or f"{glue or 'ner'}_tags"}
        return {column: theirs for column, theirs in found.items() if column != theirs}
    if task == "summarization":
        return dict(_summary_columns(conversion, dataset))
    if task in ("causal-lm", "masked-lm"):
        header = _header(conversion, dataset)
        return {"text": header[0]} if header and "text" not in header else {}
    return {}


def _text_columns(conversion: Conversion, glue: Any, dataset: Mapping[str, Any]) -> dict[str, str]:
    texts = GLUE_COLUMNS.get(str(glue).lower(), ()) if glue else ()
    if not texts:
        columns = [column for column in _header(conversion, dataset) if column != "label"]
        if {"sentence1", "sentence2"} <= set(columns):
            columns = ["sentence1", "sentence2"]
        texts = tuple(columns[:2])
    if not texts:
        conversion.note(
            "the script takes the first two columns besides `label`: if they are not `text` and "
            "`text_pair`, name them in `dataset.columns`"
        )
    names = zip(("text", "text_pair"), texts, strict=False)
    return {column: theirs for column, theirs in names if column != theirs}


def _summary_columns(
    conversion: Conversion, dataset: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    hub_name = str(dataset.get("name", "")).rpartition("/")[2]
    known = SUMMARY_COLUMNS.get(hub_name) or tuple(_header(conversion, dataset)[:2])
    for number, column in enumerate(("text", "summary")):
        theirs = str(conversion.take(f"{column}_column") or "".join(known[number : number + 1]))
        if theirs and theirs != column:
            yield column, theirs
    if not known and dataset["source"] == "hub":
        conversion.note(
            "the script takes the first two columns: if they are not `text` and `summary`, name "
            "them in `dataset.columns`"
        )


def _header(conversion: Conversion, dataset: Mapping[str, Any]) -> list[str]:
    """The columns of the first local file, as far as it can be read here."""
    if dataset["source"] != "upload":
        return []
    path = conversion.columns_from
    if path is None or not path.is_file() or path.stat().st_size > _READABLE_BYTES:
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            if path.suffix == ".csv":
                return next(csv.reader(file), [])
            return _keys(file.read())
    except (OSError, ValueError):
        return []


def _keys(text: str) -> list[str]:
    first = text.lstrip().partition("\n")[0]
    try:
        row = json.loads(first)
    except ValueError:
        row = json.loads(text)
    rows = row.get("data", row) if isinstance(row, dict) else row
    row = rows[0] if isinstance(rows, list) and rows else rows
    return list(row) if isinstance(row, dict) else []
