"""How to write what was given in a common but wrong form."""

import math
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

import yaml

from service.api.faults.walk import choices, models_in
from service.contract.fields import patterns
from service.contract.spec.spec import JobSpec
from service.contract.training_arguments.script_words import typed

_LONGEST: Final = 200
_METHODS: Final = frozenset(
    method
    for model in models_in(JobSpec.model_fields["peft"].annotation)
    for method in choices(model.model_fields["method"])
)
_FILES: Final = frozenset({".csv", ".json", ".jsonl", ".ndjson", ".parquet", ".tsv", ".txt", ".gz"})


def of_value(path: str, given: Any) -> str:
    """What follows "must be …" in the message for a value of the wrong type; mostly nothing."""
    form = written(path, given)
    if path == "dataset.validation" and _is_share(given):
        return (
            ", the name of a split; to hold out a share of the training rows give "
            f"`dataset.validation_split_percentage: {_percent(given)}`"
        )
    if form is None:
        return ""
    if path == "dataset.validation_split_percentage":
        return f" of percent: {_percent(given)} for {given:g}"
    upload = ""
    if path == "dataset" and _is_file(given):
        upload = ", whose file `finetune submit` uploads; over HTTP give its id (file-…)"
    return f": write `{form}`{upload}"


def written(path: str, given: Any, name: str | None = None) -> str | None:
    """`name: value` in YAML for a value that was given in a common but wrong form: the field is at
    `path`, and was perhaps given by another `name`."""
    value: str | None = None
    field = path.rpartition(".")[2]
    if isinstance(given, str) and 0 < len(given) <= _LONGEST:
        value = _section(path, given)
    elif path == "peft.quantization" and given is True:
        value = "{bits: 8}" if name and "8" in name else "{bits: 4}"
    elif path == "training.early_stopping_patience" and given is True:
        value = "3"
    elif path == "dataset.validation_split_percentage" and _is_share(given):
        value = str(_percent(given))
    return None if value is None else f"{field}: {value}"


def _section(path: str, given: str) -> str | None:
    """The section in YAML that the text probably stands for."""
    if path == "model":
        return _yaml({"name_or_path": given})
    if path == "peft":
        plain = given.lower().replace("-", "").replace("_", "")
        if plain == "qlora":
            return _yaml({"method": "lora", "quantization": {"bits": 4}})
        return _yaml({"method": plain}) if plain in _METHODS else None
    if path == "dataset":
        if _is_file(given):
            return _yaml({"source": "upload", "train": given})
        is_name = re.match(patterns.HUB_REPOSITORY, given)
        return _yaml({"source": "hub", "name": given}) if is_name else None
    if path == "model.config.config_overrides" and "=" in given:
        pairs = (pair.partition("=") for pair in given.split(","))
        return _yaml({name.strip(): typed(value.strip()) for name, _, value in pairs})
    return None


def _is_file(given: str) -> bool:
    return PurePath(given).suffix.lower() in _FILES


def _is_share(given: Any) -> bool:
    return isinstance(given, float) and 0 < given < 1


def _percent(share: float) -> int:
    return min(99, max(1, round(share * 100)))


def _yaml(fields: Mapping[str, Any]) -> str:
    return yaml.safe_dump(fields, default_flow_style=True, sort_keys=False, width=math.inf).strip()
