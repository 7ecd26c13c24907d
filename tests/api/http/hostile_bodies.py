"""Bodies just under 1 MiB whose faults cost as much as can be to find and to word."""

import json
from typing import Any, Final

from tests.api.factories import SPEC, spec

SIZE: Final = 1024**2 - 1024


def hostile_bodies() -> dict[str, Any]:
    """What is wrong → the body."""
    return {
        "unknown fields": SPEC | _fields("u", 1),
        "unknown options": spec(training=_fields("u", 1)),
        "unknown fields in every section": {
            **SPEC,
            **{name: {**start, **_fields("u", 1, SIZE // 8)} for name, start in _SECTIONS.items()},
        },
        "near names": spec(training=_near_names(4000)),
        "near names at the top": SPEC | _near_names(4000),
        "long near names": spec(
            training={f"{'gradient_accumulation_steps_' * 36}{n}": 1 for n in range(1000)}
        ),
        "one long name": spec(training={"learning_rate" * 80_000: 1}),
        "wrong items": _with_dataset(train=["x"] * 200_000),
        "long wrong items": _with_dataset(train=["x" * 1000] * 1000),
        "wrong sets": _with_dataset(validation={f"n{n}": [{}] * 10 for n in range(20_000)}),
        "wrong numbers": _with_peft(layers_to_transform=["x"] * 200_000),
        "wrong numbers after good ones": _with_peft(
            layers_to_transform=[1] * 1200 + ["x"] * 180_000
        ),
        "slow expressions": _with_peft(
            rank_pattern={"[a-\uffff]" * 400 + str(number): 4 for number in range(300)}
        ),
        "a deep expression": _with_peft(target_modules="(" * 4000),
        "deep arguments in a text": spec(training={"lr_scheduler_kwargs": '{"a":' * (SIZE // 6)}),
        "wrong arguments": spec(training={"lr_scheduler_kwargs": _fields("k", [])}),
        "unknown arguments": spec(training={"lr_scheduler_kwargs": _fields("k", 1)}),
        "wrong metadata": spec(metadata=_fields("a b", 1)),
        "wrong tags": spec(tracking={"tags": _fields("a\n", 1)}),
        "wrong columns": spec(dataset=SPEC["dataset"] | {"columns": _fields("c", [])}),
        "deep nesting": spec(training={"learning_rate": _nested(800)}),
        "long texts": spec(name="x" * (SIZE // 2), priority="://" * (SIZE // 7)),
        "a long choice": spec(training={"optim": "adamw_torch_" * (SIZE // 13)}),
        "many arguments in a text": spec(training={"optim_args": "a=1," * (SIZE // 5)}),
        "unknown kinds": {
            "model": {},
            "task": {"type": "quest", **_fields("u", 1, SIZE // 4)},
            "dataset": {"source": "uplod", **_fields("v", 1, SIZE // 4)},
            "peft": {"method": "lara", **_fields("w", 1, SIZE // 4)},
            "resources": {"strategy": {"type": "fsdpp", **_fields("x", 1, SIZE // 5)}},
        },
    }


_SECTIONS: Final[dict[str, dict[str, Any]]] = {
    "task": {"type": "causal-lm"},
    "model": {},
    "dataset": {"source": "hub", "name": "org/data"},
    "training": {},
    "peft": {"method": "lora"},
    "resources": {},
    "tracking": {},
    "hub": {},
}
_NEAR: Final = (
    "learning_rate",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "dataloader_num_workers",
    "activation_checkpointing_kwargs",
    "torch_compile_backend",
    "metric_for_best_model",
)


def _fields(prefix: str, value: Any, size: int = SIZE) -> dict[str, Any]:
    count = size // len(json.dumps({f"{prefix}99999": value}))
    return {f"{prefix}{number}": value for number in range(count)}


def _near_names(count: int) -> dict[str, int]:
    return {f"{name}_{number:05d}": 1 for number in range(count) for name in _NEAR}


def _nested(depth: int) -> Any:
    return {"a": _nested(depth - 1)} if depth else 1


def _with_dataset(**splits: Any) -> dict[str, Any]:
    return spec(dataset={"source": "upload", "train": "file-1", **splits})


def _with_peft(**options: Any) -> dict[str, Any]:
    return spec(peft={"method": "lora", **options})
