"""Faulty spaces of a search, and what is said of each."""

from typing import Any

SEARCH: dict[str, Any] = {
    "job": {
        "task": "question-answering",
        "model": {"name_or_path": "org/model"},
        "dataset": {"source": "hub", "name": "org/data", "validation": "validation"},
        "training": {"max_steps": 90, "eval_strategy": "steps", "eval_steps": 10},
    },
    "space": {"training.learning_rate": {"low": 1e-6, "high": 1e-2, "log": True}},
    "objective": {"metric": "f1"},
}
"""A valid search, which each case changes."""
RATE = "training.learning_rate"
OPTIM, BETA = "training.optim", "training.adam_beta1"
COSINE = "cosine_with_restarts"
Cases = dict[str, tuple[Any, ...]]
"""Name → sections that differ from SEARCH, those of `job` by `job.<section>` (None: left out), and
each of the faults: path, code and message."""

CASES: Cases = {
    "unknown path": (
        {"space": {"training.learningrate": {"low": 1e-6, "high": 1e-3}}},
        (
            "space.training.learningrate",
            "unknown_field",
            "unknown field; did you mean `training.learning_rate`?",
        ),
    ),
    "path without its section": (
        {"space": {"learning_rate": {"low": 1e-6, "high": 1e-3}}},
        (
            "space.learning_rate",
            "unknown_field",
            "unknown field; did you mean `training.learning_rate`?",
        ),
    ),
    "another tool's name": (
        {"space": {"lora_r": [4, 8]}},
        ("space.lora_r", "unknown_field", "unknown field; did you mean `peft.r`?"),
    ),
    "empty range": (
        {"space": {RATE: {"low": 1e-2, "high": 1e-3}}},
        (
            f"space.{RATE}.low",
            "conflict",
            "`low` is 0.01, more than `high`, 0.001: the range is empty",
        ),
    ),
    "log of zero": (
        {"space": {RATE: {"low": 0, "high": 1e-3, "log": True}}},
        (
            f"space.{RATE}.log",
            "conflict",
            "`log` needs a `low` above 0, and `low` is 0: zero has no logarithm",
        ),
    ),
    "choice of a wrong type": (
        {"space": {"training.per_device_train_batch_size": [8, "large"]}},
        (
            "space.training.per_device_train_batch_size.choices.1",
            "invalid_type",
            "must be a whole number",
        ),
    ),
    "fraction of an integer": (
        {"space": {"training.per_device_train_batch_size": {"low": 1.5, "high": 8}}},
        (
            "space.training.per_device_train_batch_size.low",
            "invalid_type",
            "must be a whole number",
        ),
    ),
    "out of the field's bounds": (
        {"space": {"training.adam_beta1": {"low": 0.5, "high": 1.5}}},
        ("space.training.adam_beta1.high", "invalid_value", "must be at least 0 and below 1"),
    ),
    "condition on a field that is not there": (
        {
            "space": {
                OPTIM: ["adamw_torch"],
                BETA: {"low": 0.8, "high": 0.9, "when": {"training.optimm": "adamw_torch"}},
            }
        },
        (
            f"space.{BETA}.when",
            "conflict",
            f"`space.{BETA}.when` names `training.optimm`, which `space` does not have; did "
            "you mean `training.optim`?",
        ),
    ),
    "condition that no choice meets": (
        {
            "space": {
                OPTIM: ["adamw_torch"],
                BETA: {"low": 0.8, "high": 0.9, "when": {OPTIM: "sgd"}},
            }
        },
        (
            f"space.{BETA}.when",
            "conflict",
            f"`space.{BETA}.when` needs `training.optim` to be 'sgd', which is not one of its "
            "`choices`",
        ),
    ),
    "conditions in a circle": (
        {
            "space": {
                OPTIM: {"choices": ["sgd"], "when": {"training.lr_scheduler_type": "linear"}},
                "training.lr_scheduler_type": {"choices": ["linear"], "when": {OPTIM: "sgd"}},
            }
        },
        *(
            (
                f"space.{path}.when",
                "conflict",
                f"`space.{path}.when` depends on itself, by way of other conditions",
            )
            for path in ("training.lr_scheduler_type", OPTIM)
        ),
    ),
    "overlapping paths": (
        {"space": {"peft": [None, {"method": "lora"}], "peft.r": [4, 8]}},
        (
            "space.peft.r",
            "conflict",
            "`space.peft.r` lies within `space.peft`: name `peft` in its `when`, so that it is "
            "clear for which choices it varies",
        ),
    ),
    "fields that do not vary": (
        {"space": {"priority": [1, 2]}},
        (
            "space.priority",
            "invalid_value",
            "does not vary in a search: it decides when a trial runs, not how it trains",
        ),
    ),
    "a field of a section that the template lacks": (
        {"space": {"peft.r": [4]}},
        (
            "space.peft.r.choices.0",
            "conflict",
            "`job.peft.method`: required, but not given: must be `lora` or `ia3` or "
            "`prompt-tuning` or `prefix-tuning`",
        ),
    ),
    "a name that another tool has for a bound": (
        {"space": {RATE: {"min": 1e-6, "max": 1e-3}}},
        (f"space.{RATE}.max", "unknown_field", "unknown field; did you mean `high`?"),
        (f"space.{RATE}.min", "unknown_field", "unknown field; did you mean `low`?"),
    ),
    "neither a range nor a list": (
        {"space": {RATE: 1e-3}},
        (
            f"space.{RATE}",
            "invalid_type",
            "must be a list of values, or an object with `low` and `high`",
        ),
    ),
    "a bound that is no number": (
        {"space": {RATE: {"low": "a", "high": 1}}},
        (f"space.{RATE}.low", "invalid_type", "must be a number"),
    ),
    "an older name": (
        {"space": {"training.warmup_ratio": [0.0, 0.1]}},
        (
            "space.training.warmup_ratio",
            "unknown_field",
            "an older name of the field: use `training.warmup_steps`",
        ),
    ),
    "an option that does nothing here": (
        {"space": {"training.disable_tqdm": [False]}},
        (
            "space.training.disable_tqdm",
            "unsupported_option",
            "refused: there is no terminal to draw on: progress is in GET /v1/jobs/{id}",
        ),
    ),
    "a part of a number": (
        {"space": {f"{RATE}.x": [1]}},
        (f"space.{RATE}.x", "unknown_field", f"`{RATE}` has no fields of its own"),
    ),
    "a range of texts": (
        {"space": {OPTIM: {"low": 0, "high": 1}}},
        (
            f"space.{OPTIM}",
            "invalid_type",
            "the field takes no number, so it has no range: list `choices`",
        ),
    ),
    "fractions of an integer field, by its type": (
        {"space": {"training.seed": {"low": 1, "high": 9, "type": "float"}}},
        (
            "space.training.seed.type",
            "invalid_value",
            "the field takes whole numbers only: leave `type` out, or set it to `int`",
        ),
    ),
    "steps between integers": (
        {"space": {"training.seed": {"low": 1, "high": 9, "step": 0.5}}},
        ("space.training.seed.step", "invalid_type", "must be a whole number"),
    ),
    "rows to compare trials by": (
        {"space": {"dataset.max_eval_samples": [10, 20]}},
        (
            "space.dataset.max_eval_samples",
            "invalid_value",
            "does not vary in a search: trials are compared by their evaluations, which need "
            "the same rows",
        ),
    ),
    "a value that the template contradicts": (
        {
            "space": {"training.fp16": [False, True]},
            "job.training": {"max_steps": 3, "use_cpu": True},
        },
        ("space.training.fp16.choices.1", "conflict", "`fp16` needs a GPU: use `bf16` on a CPU"),
    ),
    "a value without which the metric is not reported": (
        {
            "space": {"task.predict_with_generate": [True, False]},
            "objective": "bleu",
            "job.task": "translation",
        },
        (
            "space.task.predict_with_generate.choices.1",
            "conflict",
            "`objective.metric` is `bleu`, which the evaluation does not report; it reports `loss`",
        ),
    ),
    "a value without which the pruner has no evaluations": (
        {"space": {"training.eval_strategy": ["no", "steps"]}, "pruner": "median"},
        (
            "space.training.eval_strategy.choices.0",
            "conflict",
            "`pruner` `median` compares trials during the training, and "
            "`job.training.eval_strategy` is `no`: set it to `steps` or `epoch`",
        ),
    ),
    "conditions that cannot be met together": (
        {
            "space": {
                OPTIM: ["sgd", "adamw_torch"],
                "training.optim_args": {"choices": ["momentum=0.9"], "when": {OPTIM: "sgd"}},
                BETA: {
                    "low": 0.8,
                    "high": 0.9,
                    "when": {OPTIM: "adamw_torch", "training.optim_args": "momentum=0.9"},
                },
            }
        },
        (
            f"space.{BETA}.when",
            "conflict",
            f"`space.{BETA}.when` can never be met: it needs `{OPTIM}` to be 'adamw_torch', "
            "and by way of its other conditions 'sgd'",
        ),
    ),
}
