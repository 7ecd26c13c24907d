"""From a script's arguments to a whole spec."""

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, Final

from pydantic import BaseModel

from service.cli.convert.data import convert_data
from service.cli.convert.flags import is_on
from service.cli.convert.launcher import NO_COMMAND, Command, convert_launcher
from service.cli.convert.report import Conversion
from service.cli.convert.scripts import SCRIPTS, Script
from service.cli.convert.training import convert_training, drop_defaults, leave_out_rest
from service.contract.tasks.parameters import TaskParameters
from service.contract.training_arguments.script_options import PLACES
from service.contract.training_arguments.script_words import typed

_SPLITS: Final = {"train": "do_train", "validation": "do_eval", "test": "do_predict"}
_ORDER: Final = (
    "name",
    "mode",
    "task",
    "model",
    "dataset",
    "training",
    "peft",
    "resources",
    "tracking",
    "hub",
)


def convert(flags: Mapping[str, Any], name: str, command: Command, folder: Path) -> Conversion:
    """The spec of what the script `name` does with `flags`; it will be kept in `folder`."""
    conversion = Conversion(dict(flags))
    script = SCRIPTS[name]
    if command.is_flax:
        _read_flax(conversion)
    drop_defaults(conversion)
    wanted = _wanted(conversion)
    _convert_task(conversion, script)
    convert_model(conversion)
    convert_data(conversion, script, name, wanted, folder)
    finish(conversion, command, wanted)
    return conversion


def convert_arguments(flags: Mapping[str, Any]) -> Conversion:
    """The sections of a spec that TrainingArguments alone speak of."""
    conversion = Conversion(dict(flags))
    drop_defaults(conversion)
    for switch in _SPLITS.values():
        conversion.take(switch)
    task = {
        place.partition(".")[2]: value
        for option, place in PLACES.items()
        if place.startswith("task.") and (value := conversion.take(option)) not in (None, False)
    }
    finish(conversion, NO_COMMAND, {"train": True})
    if task:
        options = ", ".join(f"`{option}: {value}`" for option, value in task.items())
        conversion.note(f"these belong into `task`: {options}")
    return conversion


def finish(conversion: Conversion, command: Command, wanted: Mapping[str, bool]) -> None:
    """All sections but task, model, dataset and peft, and the reasons for what is left."""
    convert_launcher(conversion, command)
    _convert_names(conversion)
    _convert_trackers(conversion, trains=wanted["train"])
    _convert_hub(conversion, trains=wanted["train"])
    convert_training(conversion, trains=wanted["train"])
    leave_out_rest(conversion)
    spec = conversion.spec
    conversion.spec = {section: spec[section] for section in _ORDER if spec.get(section)}


def _read_flax(conversion: Conversion) -> None:
    """In Flax `dtype` is what is computed in; the weights are float32 whatever it is."""
    names = {"bfloat16": "bf16", "float16": "fp16"}
    precision = names.get(str(conversion.take("dtype")))
    if precision is not None:
        conversion.flags[precision] = True
    if is_on(conversion.flags.get("do_eval")) and "eval_steps" in conversion.flags:
        conversion.flags.setdefault("eval_strategy", "steps")
    conversion.note(
        "Flax trains on all devices that it sees, `per_device_train_batch_size` on each, and "
        "leaves out the last batch of an epoch if it is not full: set `resources.gpus`"
    )


def _wanted(conversion: Conversion) -> dict[str, bool]:
    """Which splits the script reads; sets `mode`."""
    wanted = {split: is_on(conversion.take(flag)) for split, flag in _SPLITS.items()}
    strategy = conversion.flags.get("eval_strategy", conversion.flags.get("evaluation_strategy"))
    if strategy not in (None, "no") or is_on(conversion.flags.get("evaluate_during_training")):
        wanted["validation"] = True
    if not any(wanted.values()):
        conversion.note("the script does nothing without --do_train: this job trains")
        wanted["train"] = True
    if not wanted["train"]:
        conversion.spec["mode"] = "evaluate" if wanted["validation"] else "predict"
    return wanted


def _convert_task(conversion: Conversion, script: Script) -> None:
    models: tuple[type[BaseModel], ...] = TaskParameters.__args__
    fields = next(
        model.model_fields for model in models if model.model_fields["type"].default == script.task
    )
    task: dict[str, Any] = {"type": script.task, **script.parameters}
    if is_on(conversion.take("do_regression")):
        task["problem_type"] = "regression"
    if script.task == "text-classification" and conversion.flags.get("task_name") == "stsb":
        task["problem_type"] = "regression"
    for option, place in PLACES.items():
        section, _, field = place.partition(".")
        of_columns = field in ("text_column", "summary_column")
        if section == "task" and field in fields and not of_columns:
            _set(task, field, conversion.take(option))
    conversion.spec["task"] = task if len(task) > 1 else script.task


def _set(section: dict[str, Any], field: str, value: Any) -> None:
    if value is not None:
        section[field] = value


def convert_model(conversion: Conversion) -> None:
    model: dict[str, Any] = {}
    name = conversion.take("model_name_or_path")
    model_type, overrides = conversion.take("model_type"), conversion.take("config_overrides")
    if name:
        model["name_or_path"] = _model_place(conversion, str(name))
        if model_type:
            reason = "it is in the model's config.json"
            conversion.leave_out("model_type", model_type, reason)
    elif model_type:
        model["config"] = {"model_type": model_type}
        if overrides:
            pairs = (pair.partition("=") for pair in str(overrides).split(","))
            changes = {key.strip(): typed(value.strip()) for key, _, value in pairs}
            model["config"]["config_overrides"] = changes
    if (revision := conversion.take("model_revision")) not in (None, "main"):
        model["revision"] = revision
    for option in ("config_name", "tokenizer_name"):
        if (given := conversion.take(option)) not in (None, "", name):
            model[option] = given
    dtype = conversion.take("torch_dtype", conversion.take("dtype"))
    _set(model, "dtype", dtype)
    conversion.spec["model"] = model


def _model_place(conversion: Conversion, name: str) -> str:
    if not (name.startswith(("/", "./", "../", "~")) or Path(name).is_dir()):
        return name
    conversion.note(
        "`model.name_or_path` is a folder: the operator has to allow it with FINETUNE_MODEL_ROOTS"
    )
    return str(Path(name).expanduser().absolute())


def _convert_names(conversion: Conversion) -> None:
    """The job is called like the folder that the script writes to."""
    output = conversion.take("output_dir")
    name = PurePath(str(output)).name if output else ""
    if name and name not in ("trainer_output", "tmp_trainer"):
        conversion.spec["name"] = name
    run_name = conversion.take("run_name")
    if run_name not in (None, output):
        conversion.section("tracking")["run_name"] = run_name


def _convert_trackers(conversion: Conversion, *, trains: bool) -> None:
    """MLflow is always one, TensorBoard where the script has it; others are left out later."""
    given = conversion.flags.get("report_to")
    trackers = [given] if isinstance(given, str) else list(given or ())
    if not trains or "tensorboard" not in trackers:
        return
    conversion.section("tracking")["tensorboard"] = True
    others = [tracker for tracker in trackers if tracker not in ("tensorboard", "mlflow")]
    if others:
        conversion.flags["report_to"] = ", ".join(others)
    else:
        del conversion.flags["report_to"]


def _convert_hub(conversion: Conversion, *, trains: bool) -> None:
    given = {
        option: conversion.take(f"hub_{option}")
        for option in ("model_id", "private_repo", "revision", "strategy", "always_push")
    }
    older = conversion.take("push_to_hub_model_id")
    organization = conversion.take("push_to_hub_organization")
    if not is_on(conversion.take("push_to_hub")):
        return
    if not trains:
        conversion.leave_out(
            "push_to_hub", given=True, reason="a job that does not train makes no model"
        )
        return
    name = given["model_id"] or older or conversion.spec.get("name")
    hub = {"model_id": f"{organization}/{name}" if organization else name}
    _set(hub, "revision", given["revision"])
    hub["strategy"] = given["strategy"] or "every_save"
    if is_on(given["always_push"]) and hub["strategy"] != "end":
        hub["always_push"] = True
    if given["private_repo"] is not None:
        hub["private"] = is_on(given["private_repo"])
    else:
        conversion.note("`hub.private` is true unless you write otherwise")
    conversion.spec["hub"] = hub
