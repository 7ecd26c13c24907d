"""Creating the configuration of a model that is trained from scratch."""

import difflib
from pathlib import Path
from typing import Any, Final

from transformers import CONFIG_MAPPING

from service.contract.failures import FailureCode, StageError
from service.contract.spec.model import ModelConfigSpec
from worker import failures
from worker.base_model import config_bounds, config_keys, resource_guard

_TOKEN_IDS: Final = ("bos_token_id", "eos_token_id", "pad_token_id")


def make_config(spec: ModelConfigSpec, tokenizer: Any, folder: Path) -> Any:
    """Write the config.json of `spec` to `folder`, with the tokenizer's vocabulary size and special
    ids.

    StageError for an unknown type, and for overrides that the type does not have or accept.
    """
    if spec.model_type not in CONFIG_MAPPING:
        raise StageError(
            FailureCode.UNSUPPORTED_ARCHITECTURE,
            f"There is no model of type {spec.model_type!r}"
            + _near(spec.model_type, list(CONFIG_MAPPING)),
            model_type=spec.model_type,
        )
    kind = CONFIG_MAPPING[spec.model_type]
    known = {*kind().to_dict(), *kind.attribute_map}
    for name in spec.config_overrides:
        if name not in known:
            raise _invalid(
                f"has {name!r}, which is not a field of configurations of type {spec.model_type!r}"
                + _near(name, sorted(known)),
                name,
            )
    values: dict[str, Any] = {
        name: getattr(tokenizer, name) for name in _TOKEN_IDS if name in known
    }
    values["vocab_size"] = max(tokenizer.get_vocab().values()) + 1
    kept = _bounded(spec)
    try:
        config = resource_guard.build(
            "Creating a model of these `config_overrides`", lambda: kind(**{**values, **kept})
        )
    except StageError as error:
        if error.failure.code is not FailureCode.INVALID_MODEL:
            raise
        raise _invalid(f"does not fit: {failures.describe(error.__cause__ or error)}") from error
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    return config


def _bounded(spec: ModelConfigSpec) -> dict[str, Any]:
    """The overrides without those that load code. StageError(invalid_option) for sizes that no
    model has."""
    try:
        config_bounds.check(spec.config_overrides, "`config_overrides`", spec.model_type)
        kept, dropped = config_keys.cleaned(spec.config_overrides, "config", spec.model_type)
    except StageError as error:
        raise _invalid(f"cannot be used: {error}") from error
    if dropped:
        raise _invalid(f"has {dropped[0]!r}, which loads code and is not accepted", dropped[0])
    return kept


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _invalid(why: str, name: str | None = None) -> StageError:
    option = "model.config.config_overrides" + (f".{name}" if name else "")
    return StageError(
        FailureCode.INVALID_OPTION, f"`model.config.config_overrides` {why}", option=option
    )
