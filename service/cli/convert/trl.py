"""From the arguments of TRL's `trl sft`, `dpo`, `kto` or `reward`, or a YAML file, to a spec."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from service.cli.convert.data import reference
from service.cli.convert.flags import is_on
from service.cli.convert.job import convert_model, finish
from service.cli.convert.launcher import Command
from service.cli.convert.report import Conversion
from service.cli.convert.training import drop_defaults
from service.cli.terminal.exit_codes import UsageError
from service.contract.spec import spec_yaml
from service.contract.training_arguments.script_words import typed

_LONGEST: Final = 1024**2


@dataclass(frozen=True)
class Trainer:
    task: str
    learning_rate: float
    """Its default, as its config has it."""
    options: tuple[str, ...]
    """The arguments that are parameters of the task under the same name."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Of the task, which no argument says."""


_KTO: Final = ("desirable_weight", "undesirable_weight")
TRAINERS: Final[dict[str, Trainer]] = {
    "sft": Trainer("chat", 2e-5, ("max_length",)),
    "dpo": Trainer("preference", 1e-6, ("max_length", "beta", "label_smoothing")),
    "kto": Trainer("preference", 1e-6, (*_KTO, "max_length", "beta"), {"loss_type": "kto"}),
    "reward": Trainer("reward", 1e-4, ("max_length", "center_rewards_coefficient")),
}
_MAX_LENGTH: Final = 1024
# Names and defaults of TRL's ModelConfig → LoraSpec.
_LORA: Final = {
    "lora_r": ("r", 16),
    "lora_alpha": ("lora_alpha", 32),
    "lora_dropout": ("lora_dropout", 0.05),
    "lora_target_modules": ("target_modules", None),
    "lora_modules_to_save": ("modules_to_save", None),
    "use_rslora": ("use_rslora", False),
    "use_dora": ("use_dora", False),
}
_NOT_NEEDED: Final = {
    "accelerate_config": "how processes share the work is `resources.strategy`",
    "attn_implementation": "the service chooses the fastest attention that gives the same results",
    "completion_only_loss": "`train_on: completion` trains what follows the prompt",
    "dataset_kwargs": "rows are prepared by the task; see docs/data.md",
    "dataset_num_proc": "the worker chooses how many processes prepare the data",
    "dataset_streaming": "data is prepared as a whole before the first step",
    "eos_token": "the token that ends a turn follows from the chat template",
    "eval_packing": "evaluations measure each row by itself",
    "pad_token": "padding is never seen by the model",
    "precompute_ref_batch_size": "the service chooses it",
    "precompute_ref_log_probs": "they are always computed once, before the first step",
    "packing_strategy": "`packing: bfd` is the only one: no conversation is cut for it",
    "truncation_mode": "conversations are cut at their end",
}


def read_config(path: Path) -> dict[str, Any]:
    """The arguments of a YAML file. Raises UsageError if it holds none."""
    try:
        content = spec_yaml.parse(path.read_text(encoding="utf-8-sig")[:_LONGEST])
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} must hold one mapping of options")
    return content


def convert_trl(flags: Mapping[str, Any], name: str, command: Command, folder: Path) -> Conversion:
    """The spec of what `trl NAME` does with `flags`."""
    given = dict(flags)
    if (config := given.pop("config", None)) is not None:
        given = read_config(Path(str(config))) | given
    trainer = TRAINERS[name]
    conversion = Conversion({"learning_rate": trainer.learning_rate, **given})
    _convert_task(conversion, trainer)
    _convert_data(conversion, folder)
    _convert_peft(conversion)
    _name_precision(conversion)
    for option, reason in _NOT_NEEDED.items():
        if (value := conversion.take(option)) not in (None, False, "False", "false"):
            conversion.leave_out(option, value, reason)
    if (count := conversion.take("num_processes")) is not None:  # passed on to accelerate
        launcher = (*command.launcher, "--num_processes", str(count))
        command = replace(command, launcher=launcher)
    drop_defaults(conversion)
    convert_model(conversion)
    finish(conversion, command, {"train": True})
    return conversion


def _convert_task(conversion: Conversion, trainer: Trainer) -> None:
    task: dict[str, Any] = {"type": trainer.task, "max_length": _MAX_LENGTH, **trainer.parameters}
    for option in trainer.options:
        if (value := typed(conversion.take(option))) is not None:
            task[option] = value
    if template := conversion.take("chat_template_path"):
        task |= _template(conversion, str(template))
    if trainer.task == "chat":
        task["train_on"] = _trained(conversion)
        task["packing"] = "bfd" if is_on(conversion.take("packing")) else "off"
    if trainer.task == "preference":
        task |= _loss(conversion)
    conversion.spec["task"] = task


def _loss(conversion: Conversion) -> dict[str, str]:
    """TRL takes several losses with weights; a job has one."""
    given = conversion.take("loss_type")
    losses = given if isinstance(given, list) else [given] if given else []
    if len(losses) > 1:
        reason = f"a job has one loss: `task.loss_type: {losses[0]}` was taken"
        conversion.leave_out("loss_type", losses[1:], reason)
    return {"loss_type": losses[0]} if losses else {}


def _trained(conversion: Conversion) -> str:
    if is_on(conversion.take("assistant_only_loss")):
        return "assistant"
    if is_on(conversion.flags.get("completion_only_loss")):
        conversion.take("completion_only_loss")
        return "completion"
    conversion.note(
        "without --assistant_only_loss TRL trains each token of `messages` (`train_on: all`), and "
        "of rows with a `prompt` the completion (`completion`); `assistant` is usual"
    )
    return "all"


def _template(conversion: Conversion, given: str) -> dict[str, str]:
    path = Path(given).expanduser()
    if path.is_file() and path.stat().st_size <= _LONGEST:
        return {"chat_template": path.read_text(encoding="utf-8")}
    reason = "not a file here: write the template, or the name of one, to `task.chat_template`"
    conversion.leave_out("chat_template_path", given, reason)
    return {}


def _convert_data(conversion: Conversion, folder: Path) -> None:
    """TRL evaluates on `dataset_test_split` if it has an `eval_strategy`."""
    config, mixture = conversion.take("dataset_config"), conversion.take("datasets")
    train = conversion.take("dataset_train_split", "train")
    test = conversion.take("dataset_test_split", "test")
    dataset: dict[str, Any] = {"source": "hub", "name": conversion.take("dataset_name")}
    if mixture:
        dataset = _first(conversion, mixture, folder)
    if config:
        dataset["config"] = config
    if dataset["source"] == "hub":
        dataset |= {"train": train} if train != "train" else {}
        if conversion.flags.get("eval_strategy") not in (None, "no", False):
            dataset["validation"] = test
    conversion.spec["dataset"] = dataset


def _first(conversion: Conversion, mixture: Any, folder: Path) -> dict[str, Any]:
    """Of `datasets` in a YAML file: a data set of the Hub, or a file."""
    first = mixture[0] if isinstance(mixture, list) and isinstance(mixture[0], dict) else {}
    if not isinstance(mixture, list) or len(mixture) != 1:
        reason = "a job reads one data set: join the files, or name one"
        conversion.leave_out("datasets", len(mixture), reason)
    files = first.get("data_files")
    if isinstance(files, dict):  # by split; TRL reads one of them
        files = files.get(first.get("split", "train"))
    if files:
        several = files if isinstance(files, list) else [files]
        train = [reference(conversion, str(file), folder) for file in several]
        return {"source": "upload", "train": train if isinstance(files, list) else train[0]}
    found = {"source": "hub", "name": first.get("path"), "config": first.get("name")}
    found["train"] = first.get("split")
    return {name: value for name, value in found.items() if value is not None}


def _convert_peft(conversion: Conversion) -> None:
    values = {ours: conversion.take(name, default) for name, (ours, default) in _LORA.items()}
    bits = {"load_in_8bit": 8, "load_in_4bit": 4}
    chosen = [count for name, count in bits.items() if is_on(conversion.take(name))]
    kind = conversion.take("bnb_4bit_quant_type")
    nested = is_on(conversion.take("use_bnb_nested_quant"))
    if not is_on(conversion.take("use_peft")):
        return
    if isinstance(values["target_modules"], list) and len(values["target_modules"]) == 1:
        [values["target_modules"]] = values["target_modules"]
    if isinstance(values["target_modules"], str) and values["target_modules"] != "all-linear":
        values["target_modules"] = [values["target_modules"]]
    lora = {name: typed(value) for name, value in values.items() if value not in (None, False)}
    conversion.spec["peft"] = {"method": "lora", **lora}
    if chosen:
        four = {"quant_type": kind} if kind else {}
        four |= {"double_quant": True} if nested else {}
        options = four if chosen == [4] else {}
        conversion.spec["peft"]["quantization"] = {"bits": chosen[0], **options}


def _name_precision(conversion: Conversion) -> None:
    """TRL computes in bfloat16 by default, as `auto` does if the device can."""
    if not is_on(conversion.flags.get("fp16")) and conversion.flags.get("bf16") is None:
        conversion.flags["precision"] = "auto"
