"""`training` of the spec, and the reasons for what has no place in it."""

from difflib import get_close_matches
from typing import Any, Final

from service.cli.convert.flags import is_on
from service.cli.convert.report import Conversion
from service.contract.spec.training import TrainingSpec
from service.contract.training_arguments.aliases import ALIASES, SWITCHES
from service.contract.training_arguments.moved_options import ELSEWHERE
from service.contract.training_arguments.refused_options import REFUSED, REMOVED
from service.contract.training_arguments.script_options import NOT_NEEDED, PLACES
from service.contract.training_arguments.script_words import typed
from service.contract.training_arguments.trainer_defaults import is_at_default, is_dump

_TEXTS: Final = frozenset({"optim_args", "metric_for_best_model", "lr_scheduler_kwargs"})
# Options that a job that only evaluates or predicts still uses.
_WITHOUT_TRAINING: Final = frozenset(
    {
        "per_device_eval_batch_size",
        "per_gpu_eval_batch_size",
        "eval_batch_size",
        "seed",
        "dataloader_num_workers",
        "bf16",
        "fp16",
        "precision",
        "bf16_full_eval",
        "fp16_full_eval",
        "use_cpu",
        "no_cuda",
        "tf32",
    }
)
# These matter even at their defaults: what the script does, and where it writes.
_ALWAYS_READ: Final = frozenset({"do_train", "do_eval", "do_predict", "output_dir"})
# Defaults there that differ from ours.
_THEIRS: Final = {
    "eval_on_start": False,
    "dataloader_num_workers": 0,
    "per_device_eval_batch_size": 8,
}
_REASONS: Final = {**REFUSED, **REMOVED, **ELSEWHERE, **NOT_NEEDED}


def drop_defaults(conversion: Conversion) -> None:
    """Runs first: users did not choose the options that a dump has at their defaults."""
    options = {name: typed(value) for name, value in conversion.flags.items()}
    pushes = is_on(options.get("push_to_hub"))
    quiet = {
        name
        for name in options
        if is_at_default(name, options)
        and name not in _ALWAYS_READ
        and not (pushes and name.startswith("hub_"))
    }
    if is_dump(options):
        quiet |= {name for name, value in _THEIRS.items() if options.get(name) == value}
    for name in quiet:
        del conversion.flags[name]
    if is_dump(options):
        conversion.note(f"{len(quiet)} options that do nothing here are at their defaults")


def convert_training(conversion: Conversion, *, trains: bool) -> None:
    if is_on(conversion.take("evaluate_during_training")):
        conversion.flags.setdefault("eval_strategy", "steps")
    training = {}
    for name in list(conversion.flags):
        if name in TrainingSpec.model_fields or name in ALIASES or name in SWITCHES:
            value = conversion.take(name)
            if trains or name in _WITHOUT_TRAINING:
                training[name] = value if name in _TEXTS else typed(value)
            else:
                conversion.leave_out(name, value, "the script does not train without --do_train")
    _name_precision(conversion, training)
    conversion.spec["training"] = training


def _name_precision(conversion: Conversion, training: dict[str, Any]) -> None:
    """The scripts compute in float32 by default; the service does not."""
    if training.get("precision"):
        return
    for name in ("bf16", "fp16"):
        if name in training and not is_on(training[name]):
            del training[name]
    if "bf16" not in training and "fp16" not in training:
        training["precision"] = "fp32"
        conversion.note(
            "`precision: fp32` computes as the script does; without it training is faster, in "
            "bfloat16, where the device can"
        )


def leave_out_rest(conversion: Conversion) -> None:
    """The remaining arguments have no place in the spec."""
    for name, given in sorted(conversion.flags.items()):
        if given is None or (name in NOT_NEEDED and given in (False, "False", "false", "")):
            continue
        conversion.leave_out(name, given, _reason(name))
    conversion.flags.clear()


def _reason(name: str) -> str:
    if name in _REASONS:
        return _REASONS[name]
    if name in PLACES:
        return f"this task does not have it; others have it as `{PLACES[name]}`"
    known = {*TrainingSpec.model_fields, *ALIASES, *SWITCHES, *PLACES, *_REASONS}
    near = get_close_matches(name[:60], known, n=1, cutoff=0.6)
    return "unknown option" + (f"; did you mean `{near[0]}`?" if near else "")
