"""Writes docs/training-options.md from the tables that the service itself goes by.

`python scripts/training_options.py` prints it, `make docs` writes the file, a test compares them.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, get_args

from pydantic import BaseModel

from service.contract.aliases import ALIASES, OLDER_VALUES, SWITCHES
from service.contract.choices import (
    BY_METRIC,
    OPTIMIZER_ARGUMENTS,
    SCHEDULE_ARGUMENTS,
    Optimizer,
    Schedule,
)
from service.contract.deepspeed import REFUSED_DEEPSPEED, DeepSpeedSpec
from service.contract.fsdp import REFUSED_FSDP, FSDPSpec
from service.contract.moved_options import ELSEWHERE
from service.contract.peft import (
    IA3Spec,
    LoraSpec,
    PrefixTuningSpec,
    PromptTuningSpec,
    QuantizationSpec,
)
from service.contract.refused_options import REFUSED, REFUSED_OPTIMIZERS, REFUSED_SAMPLING, REMOVED
from service.contract.resources import DDPSpec
from service.contract.script_options import NOT_NEEDED, PLACES
from service.contract.training import ADDITIONS, TrainingSpec

_INTRODUCTION: Final = """\
# Training options

Made by `make docs` from `service/contract`; edit the tables there.

The section `training` of a job has the names, defaults and meanings of
`transformers.TrainingArguments`. Each of its fields, of 4.x as of 5.x, is in one of the tables
below. One that is not supported here is ignored while it has its default, as in a pasted
`TrainingArguments.to_dict()`; `POST /v1/jobs/validate` lists those. Two names of one option that
disagree are refused.
"""

_ALSO: Final = """\
Schedules {schedules} follow `metric_for_best_model` and move after evaluations. Their `mode` is
`max` where a greater value is better (`greater_is_better`), else `min`, unless
`lr_scheduler_kwargs` gives a `mode`; in transformers it is always `min`.

Optimizers whose names hold `8bit` or `32bit`, `paged_`, `bnb` or `ademamix` come from
bitsandbytes, `adamw_torch_4bit` and `adamw_torch_8bit` from torchao. A worker that lacks the
package, and a paged one without a GPU, end the job with `invalid_option`.

What a training reports besides its loss: `grad_norm`, `learning_rate`, `examples_per_second`,
`tokens_per_second`, `total_flos` and `memory_rss_bytes` (of the first process) at logging steps; at
the end `train_loss`, `train_runtime`, `train_samples`, `train_samples_per_second`,
`train_steps_per_second`, `train_tokens_per_second`, `train_peak_memory_bytes`, `total_flos` and, on
GPUs whose peak is known, `train_mfu`: the share of their peaks' operations that the training made.
Of the evaluation and of the test split there are `eval_runtime`, `eval_samples`,
`eval_samples_per_second`, `eval_steps_per_second`, `test_runtime` and so on. Artifacts of each
training are `all_results.json`, `train_results.json`, `eval_results.json`, `test_results.json` and
`trainer_state.json`, which `transformers.TrainerState.load_from_json` reads. Its `log_history` is
that of all attempts; beyond 10,000 entries every second loss is left out.
`tracking.tensorboard: true` adds `tensorboard/events.out.tfevents.<job id>`: the same numbers and
those of the test split, with the Trainer's tags (`train/loss`, `eval/loss`, `test/f1`). It is
written when the training ends.
`tensorboard --logdir` shows several jobs together when each file lies in a folder of its own.
"""


_ADAPTERS: Final = """\
## Adapters (`peft`)

The section `peft` of a job, by its `method`; names and defaults are those of peft's configs, but
for `quantization`, whose names are bitsandbytes' without `bnb_4bit_`, and `merge`.
"""


def document() -> str:
    """The whole file."""
    schedules = " and ".join(f"`{name}`" for name in sorted(BY_METRIC))
    parts = [
        _INTRODUCTION,
        "## Supported\n",
        _table(("option", "default", "values", ""), _supported()),
        "Not in `TrainingArguments`, but in transformers:\n",
        _table(("option", ""), ((f"`{name}`", text) for name, text in ADDITIONS.items())),
        "## Optimizers (`optim`)\n",
        _table(("name", "`optim_args`"), _choices(Optimizer, OPTIMIZER_ARGUMENTS)),
        "Those of bitsandbytes with 8 bits keep the state of embeddings in 32.\n",
        "## Schedules (`lr_scheduler_type`)\n",
        _table(("name", "`lr_scheduler_kwargs`"), _choices(Schedule, SCHEDULE_ARGUMENTS)),
        _ALSO.format(schedules=schedules),
        _ADAPTERS,
        *_adapters(),
        "## Several processes (`resources.strategy` with `type: ddp`)\n",
        _table(("option", "default", "values", ""), _supported(DDPSpec)),
        "## The model in parts (`resources.strategy` with `type: fsdp`)\n",
        _table(("option", "default", "values", ""), _supported(FSDPSpec)),
        _table(("refused", "why"), _sentences(REFUSED_FSDP)),
        "## The optimizer in parts (`resources.strategy` with `type: deepspeed`)\n",
        _table(("option", "default", "values", ""), _supported(DeepSpeedSpec)),
        _table(("refused", "why"), _sentences(REFUSED_DEEPSPEED)),
        "## Older names\n",
        _table(("accepted", "stands for"), _older()),
        "## Elsewhere in the job\n",
        _table(("option", ""), _sentences(ELSEWHERE)),
        "## Refused\n",
        _table(("option", "why"), _sentences(REFUSED)),
        "Of transformers 4.x:\n",
        _table(("option", "why"), _sentences(REMOVED)),
        _table(
            ("value", "why"),
            [
                *_sentences(REFUSED_OPTIMIZERS, "optim: "),
                *_sentences(REFUSED_SAMPLING, "train_sampling_strategy: "),
            ],
        ),
        "## Arguments of the reference scripts\n",
        _table(
            ("argument", "in a job spec"),
            ((f"`{name}`", f"`{place}`") for name, place in sorted(PLACES.items())),
        ),
        _table(("argument", "why there is none"), _sentences(NOT_NEEDED)),
    ]
    return "\n".join(parts)


def _adapters() -> Iterator[str]:
    for model in (LoraSpec, QuantizationSpec, IA3Spec, PromptTuningSpec, PrefixTuningSpec):
        method = model.model_fields.get("method")
        yield f"`{method.default if method else 'quantization'}`:\n"
        yield _table(("option", "default", ""), _fields(model))


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        if name != "method":
            default = field.get_default(call_default_factory=True)
            shown = "required" if field.is_required() else f"`{json.dumps(default)}`"
            yield f"`{name}`", shown, field.description or ""


def _supported(model: type[BaseModel] = TrainingSpec) -> Iterator[tuple[str, ...]]:
    properties: dict[str, Any] = model.model_json_schema()["properties"]
    for name, field in model.model_fields.items():
        values = "" if name in {"optim", "lr_scheduler_type"} else _values(properties[name])
        yield f"`{name}`", f"`{json.dumps(field.default)}`", values, field.description or ""


def _values(schema: dict[str, Any]) -> str:
    """Type, choices and bounds in a few words."""
    if "anyOf" in schema:
        return " or ".join(_values(part) for part in schema["anyOf"])
    if "enum" in schema:
        return " ".join(f"`{choice}`" for choice in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[key]}" for key, sign in signs.items() if key in schema]
    return " ".join([schema.get("type", "object"), *bounds])


def _choices(names: Any, arguments: dict[str, tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    for name in get_args(names):
        yield f"`{name}`", ", ".join(f"`{argument}`" for argument in arguments.get(name, ()))


def _older() -> Iterator[tuple[str, ...]]:
    yield from ((f"`{old}`", f"`{new}`") for old, new in ALIASES.items())
    for name, values in OLDER_VALUES.items():
        yield from ((f"`{name}: {old}`", f"`{name}: {new}`") for old, new in values.items())
    for switch, (option, value) in SWITCHES.items():
        yield f"`{switch}: true`", f"`{option}: {value}`"


def _sentences(table: dict[str, str], prefix: str = "") -> Iterator[tuple[str, ...]]:
    yield from ((f"`{prefix}{name}`", sentence) for name, sentence in sorted(table.items()))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    print(document(), end="")
