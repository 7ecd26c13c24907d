"""Creating the configuration of a model that is trained from scratch."""

import difflib
from pathlib import Path
from typing import Any, Final

from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING

from service.contract.failures import FailureCode, StageError
from service.contract.model import ModelConfigSpec
from worker import failures

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
    try:
        config = kind(**{**values, **spec.config_overrides})
    except (StrictDataclassError, ValueError, TypeError) as error:
        raise _invalid(f"does not fit: {failures.describe(error)}") from error
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    return config


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _invalid(why: str, name: str | None = None) -> StageError:
    option = "model.config.config_overrides" + (f".{name}" if name else "")
    return StageError(
        FailureCode.INVALID_OPTION, f"`model.config.config_overrides` {why}", option=option
    )
