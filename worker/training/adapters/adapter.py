"""Adapters of the package peft around a loaded model: creating, saving and merging them."""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from peft import (
    IA3Config,
    LoraConfig,
    PeftConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptTuningConfig,
    get_peft_model,
    get_peft_model_state_dict,
    prepare_model_for_kbit_training,
)
from peft.utils import ModulesToSaveWrapper

from service.contract.failures import FailureCode, StageError
from service.contract.spec.peft import (
    BASE_CONFIG_FOLDER,
    TASK_TYPES,
    IA3Spec,
    LoraSpec,
    PrefixTuningSpec,
)
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice
from worker import failures
from worker.failures import invalid_option

_ADAPTED: Final = (".base_layer", ".original_module")
"""Where peft keeps the module that it has put its own in the place of."""
# Modules that peft always trains in addition to the adapter: ends of their names, by its task type.
_HEADS: Final[dict[str | None, tuple[str, ...]]] = {
    "SEQ_CLS": ("classifier", "score"),
    "TOKEN_CLS": ("classifier", "score"),
    "QUESTION_ANS": ("qa_outputs",),
}


# ---- creating -----------------------------------------------------------------------------------


def wrap(model: Any, spec: JobSpec, tokenizer_dir: Path, new_weights: Sequence[str]) -> PeftModel:
    """The model with its own weights frozen, and a trainable adapter.

    `new_weights` names the weights that were not in the base model: their modules train as well,
    and are saved with the adapter. StageError if peft cannot train one of them.
    """
    heads = _new_modules(model, new_weights)
    config = config_of(spec, model, tokenizer_dir, heads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `prepare` has already reported them
        if getattr(spec.peft, "quantization", None) is not None:
            prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        wrapped = get_peft_model(model, config)
    _require_trained(wrapped, heads)
    _keep_own_logits(wrapped, config)
    if spec.training.activation_checkpointing:
        # The backward pass reaches a checkpointed module only if its input requires a gradient.
        model.enable_input_require_grads()
    return wrapped


def config_of(
    spec: JobSpec, model: Any, tokenizer_dir: Path, heads: Sequence[str] = ()
) -> PeftConfig:
    """peft's configuration; `heads` are names of modules that are trained fully."""
    adapter, config = spec.peft, model.config
    assert adapter is not None, "only jobs with an adapter have a configuration of one"
    task_type = TASK_TYPES.get(spec.task.variant())
    given: list[str] = getattr(adapter, "modules_to_save", None) or []
    whole = _whole(model, [*given, *_HEADS.get(task_type, ())], heads)
    options = adapter.model_dump(exclude={"method", "quantization", "merge"})
    options |= {"task_type": task_type, "modules_to_save": whole or None}
    if isinstance(adapter, LoraSpec):
        return LoraConfig(**options)
    if isinstance(adapter, IA3Spec):
        return IA3Config(**options)
    options |= _shape(config)
    if isinstance(adapter, PrefixTuningSpec):
        stated = (getattr(config, name, None) for name in ("head_dim", "d_kv"))
        size = next((each for each in stated if each), None)
        count = options["num_attention_heads"]
        width: Any = size * count if size and count else getattr(config, "hidden_size", None)
        return PrefixTuningConfig(**options, token_dim=width)
    by_text = adapter.prompt_tuning_init == "TEXT"
    return PromptTuningConfig(
        **options,
        # Not the hidden size, peft's default: ALBERT's and ELECTRA's embeddings are narrower.
        token_dim=model.get_input_embeddings().embedding_dim,
        tokenizer_name_or_path=str(tokenizer_dir) if by_text else None,
    )


def _shape(config: Any) -> dict[str, Any]:
    """Layers and attention heads; the decoder's in an encoder-decoder. peft knows only some of the
    names in configurations."""

    def first(*names: str) -> Any:
        return next((value for name in names if (value := getattr(config, name, None))), None)

    return {
        "num_layers": first("num_decoder_layers", "decoder_layers", "num_hidden_layers"),
        "num_attention_heads": first("decoder_attention_heads", "num_attention_heads"),
    }


@contextmanager
def known_warnings() -> Iterator[None]:
    """Ignore warnings that peft always gives, and that users cannot fix."""
    with warnings.catch_warnings():
        # peft uses the older name of activation checkpointing.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
        # peft has set the right value itself when it warns.
        warnings.filterwarnings("ignore", "fan_in_fan_out is set to")
        yield


def load(model: Any, folder: Path, new_weights: Sequence[str]) -> PeftModel:
    """The model with a finished adapter, which must have all of the model's `new_weights`."""
    heads = _new_modules(model, new_weights)
    with known_warnings():
        loaded = PeftModel.from_pretrained(model, str(folder))
    _require_trained(loaded, heads)
    _keep_own_logits(loaded, loaded.peft_config["default"])
    return loaded


def _keep_own_logits(model: PeftModel, config: PeftConfig) -> None:
    if isinstance(config, PromptTuningConfig) and config.task_type == "CAUSAL_LM":
        model.register_forward_hook(_drop_prompt_logits, with_kwargs=True)


def _drop_prompt_logits(_model: Any, _inputs: Any, given: Mapping[str, Any], output: Any) -> Any:
    """A forward hook: tasks expect logits of their own tokens only, (batch, length, vocabulary).
    While the adapter is disabled there are no others."""
    output["logits"] = output["logits"][:, -given["input_ids"].shape[1] :]
    return output


# ---- new heads ----------------------------------------------------------------------------------


def _new_modules(model: torch.nn.Module, new_weights: Sequence[str]) -> list[str]:
    """Names of the modules whose weights are new.

    A new weight that is constant is ignored if its module contains others or shares a weight with
    the base model: loading the base model gives the same numbers again.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    owners: dict[str, None] = {}
    for name in new_weights:
        if name not in parameters:
            continue
        owner = name.rpartition(".")[0]
        if _stands_alone(model.get_submodule(owner), parameters):
            owners[owner] = None
        elif bool((parameters[name] != parameters[name].flatten()[0]).any()):
            if not owner:
                raise _cannot_train(name)
            owners[owner] = None
    return list(owners)


def _stands_alone(module: torch.nn.Module, parameters: dict[str, torch.nn.Parameter]) -> bool:
    if next(module.children(), None) is not None:
        return False
    own = {id(each) for each in module.parameters()}
    return sum(id(each) in own for each in parameters.values()) == len(own)


def _whole(model: torch.nn.Module, ends: Sequence[str], heads: Sequence[str]) -> list[str]:
    """Full names of the modules that are trained fully, none inside another: those that match
    `modules_to_save` by peft's rule, and the heads.

    Full names, because peft uses another rule to keep adapters away from these modules.
    """
    met = [name for name, _ in model.named_modules() if any(name.endswith(end) for end in ends)]
    outermost: list[str] = []
    for name in sorted({*met, *heads}, key=len):
        if not any(name.startswith(f"{outer}.") for outer in outermost):
            outermost.append(name)
    return sorted(outermost)


def _require_trained(model: PeftModel, heads: Sequence[str]) -> None:
    base: Any = model.get_base_model()
    trained = [
        name for name, each in base.named_modules() if isinstance(each, ModulesToSaveWrapper)
    ]
    for head in heads:
        if not any(f"{head}.".startswith(f"{name}.") for name in trained):
            raise _cannot_train(head)


def _cannot_train(name: str) -> StageError:
    return StageError(
        FailureCode.UNSUPPORTED_ARCHITECTURE,
        f"{name!r} is not in the base model, and peft cannot train it together with an adapter",
        weight=name,
    )


# ---- saving and merging -------------------------------------------------------------------------


def notice(model: PeftModel) -> Notice:
    trained, count = model.get_nb_trainable_parameters()
    return Notice(
        message=f"Training {trained:,} of {count:,} parameters ({100 * trained / count:.2f} %)",
        data={"trainable": trained, "parameters": count},
    )


def save(model: PeftModel, output: Path, spec: JobSpec, revision: str | None) -> None:
    """Write adapter_model.safetensors, adapter_config.json with the user's base model at
    `revision`, and the base model's configuration in a folder of its own."""
    model.save_pretrained(str(output), save_embedding_layers=False)
    (output / "README.md").unlink()  # `publish` writes the model card
    _name_origins(output / "adapter_config.json", spec, revision)
    base: Any = model.get_base_model()
    config = type(base.config).from_dict(base.config.to_dict())
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.save_pretrained(output / BASE_CONFIG_FOLDER)
    if base.can_generate():
        base.generation_config.save_pretrained(output / BASE_CONFIG_FOLDER)


def export(model: PeftModel) -> dict[str, torch.Tensor]:
    """The adapter's weights by peft's names. For a prompt or a prefix these are the embeddings that
    the model gets, which are not the trained parameters."""
    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: value.contiguous() for name, value in state.items()}


def base_name(spec: JobSpec) -> str:
    """The base model's name in an adapter: for a folder the last part only, because an adapter must
    not reveal the worker's paths."""
    name = spec.model.name_or_path or ""
    return Path(name).name if Path(name).is_absolute() else name


def _name_origins(file: Path, spec: JobSpec, revision: str | None) -> None:
    """Replace local folders by the user's names, and sort sets of names."""
    config = json.loads(file.read_bytes())
    config |= {"base_model_name_or_path": base_name(spec), "revision": revision}
    if config.get("tokenizer_name_or_path"):
        config["tokenizer_name_or_path"] = spec.model.tokenizer_name or base_name(spec)
    for name in ("target_modules", "exclude_modules", "feedforward_modules", "modules_to_save"):
        if isinstance(config.get(name), list):
            config[name] = sorted(set(config[name]))
    file.write_text(json.dumps(config, indent=2, sort_keys=True))


def _untie(base: Any) -> None:
    """Give the output embeddings weights of their own, if the adapter changes these or those of the
    input: a weight that both share could hold only one of the results."""
    owners: dict[int, list[str]] = {}
    for name, parameter in base.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    shared = {key: names for key, names in owners.items() if len(names) > 1}
    if not any(part in name for names in shared.values() for name in names for part in _ADAPTED):
        return
    output = base.get_output_embeddings()
    for part in _ADAPTED:
        output = getattr(output, part.strip("."), output)
    for name, parameter in output.named_parameters(recurse=False):
        if id(parameter) in shared:
            setattr(output, name, torch.nn.Parameter(parameter.detach().clone()))
    base.config.tie_word_embeddings = False


def merge(model: PeftModel) -> Any:
    """The base model with the adapter merged into its weights; the adapter no longer exists. Where
    it changes one of two tied embeddings, they have weights of their own afterwards. A model on the
    meta device has no numbers: only whether peft can merge it is found.

    StageError(invalid_option) if it cannot.
    """
    merging: Any = model
    _untie(merging.get_base_model())
    is_meta = next(model.parameters()).is_meta
    try:
        return merging.merge_and_unload(safe_merge=not is_meta)
    except (RuntimeError, ValueError, NotImplementedError, AttributeError, TypeError) as error:
        if failures.from_exception(error).code is not FailureCode.INTERNAL:
            raise  # out of memory, for example
        raise invalid_option(
            "peft.merge",
            f"cannot be true: {str(error).rstrip('.')}. Submit the job with `peft.merge: false`, "
            "which publishes the adapter. If it was trained already, name a checkpoint before its "
            "last step in `training.resume_from`, and only the steps after it are repeated",
        ) from error
