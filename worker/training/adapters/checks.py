"""Checking an adapter on a model without weights, before the job takes a GPU."""

import inspect
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from peft import PeftModel, get_peft_model
from peft.utils.constants import (
    TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING as _IA3_DEFAULTS,
)
from peft.utils.constants import (
    TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as _LORA_DEFAULTS,
)
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from service.contract.failures import StageError
from service.contract.spec.peft import (
    ALL_LINEAR,
    IA3Spec,
    LoraSpec,
    PrefixTuningSpec,
    PromptTuningSpec,
)
from service.contract.spec.spec import JobSpec
from worker.failures import invalid_option
from worker.time_budget import time_budget
from worker.training.adapters.adapter import config_of, known_warnings, merge

_PATTERN_SECONDS: Final = 10.0
_LINEAR: Final = (torch.nn.Linear, Conv1D)
_OTHERS: Final = (torch.nn.Embedding, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)


def check(model: Any, spec: JobSpec, *, pads_left: bool) -> list[str]:
    """peft's warnings about this adapter on `model`, which must be on the meta device.

    The model cannot be used afterwards. StageError(invalid_option) if the adapter does not fit it.
    """
    adapter = spec.peft
    if isinstance(adapter, LoraSpec | IA3Spec):
        _check_names(model, adapter)
        tied = _tied(model)
        wrapped, peft_warnings = _wrap(model, spec)
        targeted = list(wrapped.base_model.targeted_module_names)
        if isinstance(adapter, LoraSpec):
            _check_patterns(adapter, targeted)
            if adapter.merge:
                _check_merge(wrapped, targeted, tied)
        return peft_warnings
    if isinstance(adapter, PrefixTuningSpec):
        _check_cache(model)
    elif isinstance(adapter, PromptTuningSpec):
        _check_pooling(model, spec, pads_left=pads_left)
    table = model.get_input_embeddings().weight
    wrapped, peft_warnings = _wrap(model, spec)
    found = getattr(wrapped.word_embeddings, "weight", None)
    if isinstance(adapter, PromptTuningSpec) and found is not table:
        raise _unfit(model, "prompt-tuning", "peft does not find its word embeddings")
    return peft_warnings


def _wrap(model: Any, spec: JobSpec) -> tuple[Any, list[str]]:
    """peft's model around `model`, and its warnings."""
    if isinstance(spec.peft, PromptTuningSpec):  # without weights, no text
        how = {"prompt_tuning_init": "RANDOM", "prompt_tuning_init_text": None}
        spec = spec.model_copy(update={"peft": spec.peft.model_copy(update=how)})
    listing = _listing(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with known_warnings():
                config = config_of(spec, model, Path())
                wrapped: PeftModel = get_peft_model(model, config, low_cpu_mem_usage=True)
        # peft raises these for names and shapes that do not fit.
        except (ValueError, TypeError, AttributeError, NotImplementedError, RuntimeError) as error:
            raise invalid_option("peft", f"does not fit the model: {error} {listing}") from error
    return wrapped, [str(each.message) for each in caught]


# ---- names of modules ---------------------------------------------------------------------------


def _check_names(model: Any, adapter: LoraSpec | IA3Spec) -> None:
    known = _LORA_DEFAULTS if isinstance(adapter, LoraSpec) else _IA3_DEFAULTS
    if adapter.target_modules is None and model.config.model_type not in known:
        raise invalid_option(
            "peft.target_modules",
            f"is not given, and peft has no default for models of type "
            f"{model.config.model_type!r}: "
            + (f"give `{ALL_LINEAR}` or names. " if isinstance(adapter, LoraSpec) else "")
            + _listing(model),
        )
    modules = {name: module for name, module in model.named_modules() if name}
    adaptable = [name for name, each in modules.items() if isinstance(each, _LINEAR + _OTHERS)]
    options = ("target_modules", "exclude_modules", "feedforward_modules", "modules_to_save")
    for option in ("rank_pattern", "alpha_pattern"):
        for pattern in getattr(adapter, option, ()):
            _try_pattern(option, rf"(.*\.)?({pattern})$", list(modules))
    for option in options:
        given = getattr(adapter, option, None)
        if isinstance(given, str):
            _try_pattern(option, given, list(modules))
        names = adaptable if option == "target_modules" else list(modules)
        for wanted in _unmatched(given, names, option):
            raise invalid_option(
                f"peft.{option}", f"has {wanted!r}, which matches no module. {_listing(model)}"
            )


def _try_pattern(option: str, pattern: str, names: Sequence[str]) -> None:
    """Match all names, as peft does. StageError(invalid_option) if that takes too long."""

    def too_slow() -> StageError:
        return invalid_option(
            f"peft.{option}",
            f"is a regular expression that takes more than {_PATTERN_SECONDS:g} s to match the "
            f"names of {len(names)} modules: simplify it, for example without a repetition inside "
            "a repetition",
        )

    try:
        with time_budget(_PATTERN_SECONDS, too_slow):
            for name in names:
                re.fullmatch(pattern, name)
    except re.error as error:  # of what the API cannot see without compiling it
        message = f"is not a valid regular expression: {error}"
        raise invalid_option(f"peft.{option}", message) from error


def _unmatched(given: list[str] | str | None, names: Sequence[str], option: str) -> Iterator[str]:
    if isinstance(given, str):
        shorthand = option == "target_modules" and given.lower() == ALL_LINEAR
        if not shorthand and not any(re.fullmatch(given, name) for name in names):
            yield given
    for wanted in given if isinstance(given, list) else ():
        dot = "" if option == "modules_to_save" else "."  # peft's own rules
        if not any(name == wanted or name.endswith(f"{dot}{wanted}") for name in names):
            yield wanted


def _listing(model: PreTrainedModel) -> str:
    """The last parts of the names of modules that adapters can change, with their numbers."""
    kinds = {"linear": _LINEAR, "other": _OTHERS}
    found = {kind: Counter[str]() for kind in kinds}
    for name, module in model.named_modules():
        for kind, classes in kinds.items():
            if isinstance(module, classes):
                found[kind][name.rpartition(".")[2]] += 1
    parts = [
        f"{kind} modules " + ", ".join(f"{name} ({count})" for name, count in names.most_common())
        for kind, names in found.items()
        if names
    ]
    return f"The model has {'; '.join(parts)}"


def _check_patterns(adapter: LoraSpec, targeted: Sequence[str]) -> None:
    """peft ignores numbers and patterns that match nothing, so check them here."""
    for option in ("rank_pattern", "alpha_pattern"):
        for pattern in getattr(adapter, option):
            if not any(re.match(rf"(.*\.)?({pattern})$", name) for name in targeted):
                raise invalid_option(
                    f"peft.{option}",
                    f"has {pattern!r}, which matches none of the adapted modules: "
                    + ", ".join(sorted({name.rpartition(".")[2] for name in targeted})),
                )
    for layer in adapter.layers_to_transform or ():
        if not any(f".{layer}." in name for name in targeted):
            raise invalid_option(
                "peft.layers_to_transform", f"has {layer}, but there is no such layer"
            )


def _tied(model: PreTrainedModel) -> list[set[str]]:
    """Names of modules that share a weight; without the embeddings, which can be untied, and what
    holds those of the output, which may share their bias (BERT)."""
    owners: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), set()).add(name.rpartition(".")[0])
    both = [model.get_input_embeddings(), model.get_output_embeddings()]
    named = model.named_modules(remove_duplicate=False)
    untied = {name for name, module in named if any(module is each for each in both)}
    untied |= {name.rpartition(".")[0] for name in untied}
    return [names for names in owners.values() if len(names) > 1 and not names <= untied]


def _check_merge(wrapped: PeftModel, targeted: Sequence[str], tied: Sequence[set[str]]) -> None:
    """Merge, unless a weight would be changed in one of the places that share it."""
    config: Any = wrapped.peft_config["default"]
    whole = config.modules_to_save or []
    for names in tied:
        for name in sorted(names):
            if name in targeted or any(f"{name}.".startswith(f"{each}.") for each in whole):
                others = ", ".join(sorted(names - {name}))
                raise invalid_option(
                    "peft.merge",
                    f"cannot be true: {name} shares its weight with {others}, and models of type "
                    f"{wrapped.config.model_type!r} cannot have different ones there. Publish the "
                    "adapter instead (`peft.merge: false`)",
                )
    merge(wrapped)


# ---- prompts and prefixes -----------------------------------------------------------------------


def _check_cache(model: Any) -> None:
    body = getattr(model, model.base_model_prefix, model)
    takes = [inspect.signature(each.forward).parameters for each in (model, body)]
    if not any("past_key_values" in parameters for parameters in takes):
        raise _unfit(model, "prefix-tuning", "its attention does not accept keys and values")


def _check_pooling(model: Any, spec: JobSpec, *, pads_left: bool) -> None:
    """Decoders classify by the last token, which they find by the token ids. With a prompt they get
    embeddings instead of ids, and would take padding for the last token."""
    if spec.task.variant() == "text-classification" and hasattr(model, "score") and not pads_left:
        raise _unfit(
            model, "prompt-tuning", "it would classify by the padding; use `prefix-tuning`"
        )


def _unfit(model: Any, method: str, why: str) -> StageError:
    kind = model.config.model_type
    return invalid_option(
        "peft.method", f"`{method}` does not work with a model of type {kind!r}: {why}"
    )
