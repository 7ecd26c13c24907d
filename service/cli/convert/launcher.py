"""`resources` of the spec: how many processes the launcher would have started, and on what."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final

from service.cli.convert.flags import is_on, parse
from service.cli.convert.report import Conversion
from service.cli.convert.scripts import without_flax
from service.contract.training_arguments.script_words import typed

_SCRIPT: Final = re.compile(r"run_\w+\.py|(?:sft|dpo|kto|reward)\.py")
_TRL: Final = frozenset({"sft", "dpo", "kto", "reward", "grpo", "rloo"})
"""Commands of `trl`."""
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_COUNTS: Final = ("nproc_per_node", "num_processes", "num_gpus", "num_cores")
_DDP: Final = (
    "find_unused_parameters",
    "bucket_cap_mb",
    "broadcast_buffers",
    "static_graph",
    "timeout",
)
_ELSEWHERE: Final = "the strategy of several processes is `resources.strategy`"
_MACHINES: Final = "a job runs on one machine; set `resources.gpus`"
_ONE_PROCESS: Final = "it is for several processes, and the command starts one"


@dataclass(frozen=True)
class Command:
    """`CUDA_VISIBLE_DEVICES=… launcher --options run_x.py arguments`, taken apart."""

    script: str
    """Its name without folder and `.py`, and without `flax`; of `trl sft` the second word."""
    arguments: tuple[str, ...]
    launcher: tuple[str, ...]
    visible_gpus: str | None = None
    is_flax: bool = False
    """Whether the script's name or folder says so."""


NO_COMMAND: Final = Command("", (), ())
"""Of arguments in a file."""


def read_command(words: Sequence[str], environ: Mapping[str, str]) -> Command | None:
    """None if no word is a script of Python, or one of TRL's."""
    at = _script_at(words)
    if at is None:
        return None
    visible = environ.get(_VISIBLE)
    for word in words[:at]:
        if word.startswith(f"{_VISIBLE}="):
            visible = word.partition("=")[2]
    return Command(
        without_flax(PurePath(words[at]).stem),
        tuple(words[at + 1 :]),
        tuple(words[:at]),
        visible,
        is_flax="flax" in words[at],
    )


def _script_at(words: Sequence[str]) -> int | None:
    for at, word in enumerate(words):
        if _SCRIPT.fullmatch(PurePath(word).name):
            return at
        if PurePath(word).name == "trl" and at + 1 < len(words) and words[at + 1] in _TRL:
            return at + 1
    return next((at for at, word in enumerate(words) if word.endswith(".py")), None)


def convert_launcher(conversion: Conversion, command: Command) -> None:
    options = _options(command)
    names = {PurePath(word).name for word in command.launcher}
    if names & {"accelerate", "deepspeed"} and not set(_COUNTS) & set(options):
        conversion.note(
            "the launcher chooses by its own configuration how many processes it starts; set "
            "`resources.gpus`"
        )
    processes = _processes(conversion, options)
    visible = command.visible_gpus
    if visible is not None and not options and processes == 1:
        processes = max(1, len([gpu for gpu in visible.split(",") if gpu not in ("", "-1")]))
    if mixed := options.pop("mixed_precision", None):
        conversion.flags |= {str(mixed): True} if mixed in ("bf16", "fp16") else {}
    on_cpu = any(is_on(conversion.flags.get(name)) for name in ("use_cpu", "no_cuda"))
    on_cpu = on_cpu or is_on(options.pop("cpu", False)) or visible in ("", "-1")
    resources: dict[str, Any] = {}
    if on_cpu:
        resources = {"gpus": 0} | ({"num_processes": processes} if processes > 1 else {})
    elif processes > 1:
        resources = {"gpus": processes}
    if strategy := _strategy(conversion, processes):
        resources["strategy"] = strategy
    if resources:
        conversion.spec["resources"] = resources
    _report_rest(conversion, options)


def _options(command: Command) -> dict[str, Any]:
    words = [word for word in command.launcher if word not in ("-m", "-u")]
    first = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    return parse(words[first:])


def _processes(conversion: Conversion, options: dict[str, Any]) -> int:
    counts = [typed(options.pop(name)) for name in _COUNTS if name in options]
    for count in counts:
        if not isinstance(count, int):
            conversion.note(
                f"the launcher starts `{count}` processes; set `resources.gpus` to how many GPUs "
                "the training needs"
            )
    return max([count for count in counts if isinstance(count, int)], default=1)


def _report_rest(conversion: Conversion, options: Mapping[str, Any]) -> None:
    for name, given in options.items():
        if name in ("nnodes", "num_machines", "node_rank", "machine_rank"):
            if str(given) not in ("0", "1"):
                conversion.leave_out(name, given, _MACHINES)
        elif name in ("multi_gpu", "use_env", "standalone"):
            continue
        elif name in ("use_fsdp", "use_deepspeed", "config_file"):
            conversion.leave_out(name, given, f"its file is not read; {_ELSEWHERE}")
        else:
            conversion.leave_out(name, given, "the worker starts the processes itself")


def _strategy(conversion: Conversion, processes: int) -> dict[str, Any] | None:
    """Of the arguments `--ddp_…`, `--fsdp` and `--deepspeed`."""
    chosen = None
    ddp = {
        name: typed(value) for name in _DDP if (value := conversion.take(f"ddp_{name}")) is not None
    }
    if ddp.get("timeout") == 1800:
        del ddp["timeout"]
    if ddp:
        chosen = {"type": "ddp", **ddp}
    sharded = conversion.take("fsdp")
    config = conversion.take("fsdp_config")
    if sharded not in (None, "", [], False):
        chosen = _fsdp(conversion, sharded, config)
    zero = conversion.take("deepspeed")
    if zero is not None:
        chosen = _deepspeed(conversion, zero)
    if chosen is not None and processes == 1:
        conversion.leave_out(f"strategy {chosen['type']}", len(chosen), _ONE_PROCESS)
        return None
    return chosen


def _fsdp(conversion: Conversion, given: Any, config: Any) -> dict[str, Any]:
    words = given if isinstance(given, list) else str(given).split()
    strategy: dict[str, Any] = {"type": "fsdp"}
    if "shard_grad_op" in words:
        strategy["reshard_after_forward"] = False
    if "offload" in words:
        strategy["cpu_offload"] = True
    parts = _object(config)
    layers = parts.get("transformer_layer_cls_to_wrap") or conversion.take(
        "fsdp_transformer_layer_cls_to_wrap"
    )
    if layers:
        strategy["transformer_layer_cls_to_wrap"] = [layers] if isinstance(layers, str) else layers
    elif parts.get("min_num_params"):
        strategy |= {
            "auto_wrap_policy": "size_based_wrap",
            "min_num_params": parts["min_num_params"],
        }
    known = {"transformer_layer_cls_to_wrap", "min_num_params", "reshard_after_forward"}
    for name in parts.keys() - known:
        if parts[name]:
            conversion.leave_out(f"fsdp_config.{name}", parts[name], f"see {_ELSEWHERE}")
    return strategy


def _deepspeed(conversion: Conversion, given: Any) -> dict[str, Any] | None:
    zero = _object(given).get("zero_optimization")
    stage = zero.get("stage") if isinstance(zero, dict) else None
    if not isinstance(zero, dict) or stage not in (1, 2):
        reason = (
            "stage 3 is not supported: use `resources.strategy` with `type: fsdp`"
            if stage == 3
            else "its file cannot be read here, or names no stage; use `resources.strategy` with "
            "`type: deepspeed`"
        )
        conversion.leave_out("deepspeed", given, reason)
        return None
    strategy: dict[str, Any] = {"type": "deepspeed", "zero_stage": stage}
    offload = zero.get("offload_optimizer")
    if isinstance(offload, dict) and offload.get("device") == "cpu":
        strategy["offload_optimizer_device"] = "cpu"
    conversion.note("of the DeepSpeed configuration only stage and offloading were taken")
    return strategy


def _object(given: Any) -> dict[str, Any]:
    """An object, given as such, as JSON or as a file of JSON; empty if it is none of them."""
    if isinstance(given, str):
        try:
            text = given if given.startswith("{") else Path(given).read_text(encoding="utf-8")
            given = json.loads(text)
        except (OSError, ValueError):
            return {}
    return given if isinstance(given, dict) else {}
