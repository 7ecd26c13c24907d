"""Faulty sections of a search besides its space, and what is said of each."""

from tests.api.search_space_faults import RATE, Cases

CASES: Cases = {
    "grid of a million": (
        {
            "sampler": "grid",
            "space": {
                RATE: {"low": 0.001, "high": 1, "step": 0.001},
                "training.seed": {"low": 0, "high": 999},
            },
        },
        (
            "space",
            "conflict",
            "`space` has 1,000,000 combinations, and `sampler` `grid` tries at most 100,000: "
            "use larger steps or fewer choices, or `sampler` `qmc`, which spreads any number "
            "of trials evenly",
        ),
    ),
    "grid without end": (
        {"sampler": "grid"},
        (
            f"space.{RATE}",
            "conflict",
            f"`space.{RATE}` has no end of values, and `sampler` `grid` tries each one: give "
            "it a `step`, or list `choices`",
        ),
    ),
    "metric that is not reported": (
        {"objective": {"metric": "exactmatch"}},
        (
            "objective.metric",
            "unknown_metric",
            "`objective.metric` is `exactmatch`, which the evaluation does not report; it "
            "reports `loss`, `exact_match`, `f1`; did you mean `exact_match`?",
        ),
    ),
    "metric of one of several validation sets": (
        {
            "objective": {"metric": "f1"},
            "job.dataset": {
                "source": "hub",
                "name": "org/data",
                "validation": {"easy": "a", "hard": "b"},
            },
        },
        (
            "objective.metric",
            "unknown_metric",
            "`objective.metric` is `f1`, which the evaluation does not report; it reports "
            "`easy_loss`, `easy_exact_match`, `easy_f1`, `hard_loss`, `hard_exact_match`, "
            "`hard_f1`",
        ),
    ),
    "sampler": (
        {"sampler": {"name": "tpee"}},
        (
            "sampler.name",
            "invalid_value",
            "must be `tpe` or `random` or `grid` or `qmc` or `gp` or `nsgaii`; did you mean `tpe`?",
        ),
    ),
    "option of a sampler": (
        {"sampler": {"name": "tpe", "n_startup": 3}},
        ("sampler.n_startup", "unknown_field", "unknown field; did you mean `n_startup_trials`?"),
    ),
    "options that exclude each other": (
        {"pruner": {"name": "asha", "rungs": [30, 10], "min_resource": 3}},
        ("pruner.rungs", "conflict", "`rungs` begin with the first rung: leave `min_resource` out"),
        ("pruner.rungs", "conflict", "`rungs` must rise, each value once"),
    ),
    "rungs behind the end": (
        {"pruner": {"name": "asha", "rungs": [100, 300]}},
        (
            "pruner.rungs",
            "conflict",
            "no rung lies before the end of a training: the first one is at 100 steps, and the "
            "training has 90",
        ),
    ),
    "rungs that no evaluation reaches": (
        {
            "pruner": {"name": "asha", "rungs": [30]},
            "job.training": {"max_steps": 90, "eval_strategy": "steps", "eval_steps": 90},
        },
        (
            "pruner.rungs",
            "conflict",
            "no rung lies before the end of a training: the first one is at 30 steps, and the "
            "training has 90, evaluated every 90: set `job.training.eval_steps` lower",
        ),
    ),
    "hyperband without an end": (
        {"pruner": "hyperband", "job.training": {"eval_strategy": "steps", "eval_steps": 10}},
        (
            "pruner.max_resource",
            "missing_field",
            "`hyperband` needs to know how long a whole training is: give `max_resource`, or "
            "`job.training.max_steps` outside of the space",
        ),
    ),
    "pruner without evaluations": (
        {"pruner": "median", "job.training": {"max_steps": 3}},
        (
            "job.training.eval_strategy",
            "conflict",
            "`pruner` `median` compares trials during the training, and "
            "`job.training.eval_strategy` is `no`: set it to `steps` or `epoch`",
        ),
    ),
    "nothing to compare trials by": (
        {
            "job.dataset": {"source": "hub", "name": "org/data"},
            "job.training": {"max_steps": 3},
        },
        (
            "job.dataset.validation",
            "missing_field",
            "a search compares trials by their evaluations: give `validation`, or "
            "`validation_split_percentage`",
        ),
    ),
    "several objectives": (
        {
            "objective": [{"metric": "f1"}, {"metric": "loss"}],
            "pruner": "median",
            "best": "refit",
        },
        (
            "best",
            "conflict",
            "`best` is `refit`, and several in `objective` have no single best trial: use "
            "`keep`, then publish or clone the job that you choose",
        ),
        (
            "pruner",
            "conflict",
            "`pruner` `median` compares trials by one metric: use `none` for several in "
            "`objective`",
        ),
    ),
    "publishing to nowhere": (
        {"best": "publish"},
        (
            "best.hub",
            "missing_field",
            "`publish` needs to know where to: give `best.hub`, or `job.hub`",
        ),
    ),
    "what the refit changes": (
        {"best": {"action": "refit", "set": {"training.max_step": 300}}},
        (
            "best.set.training.max_step",
            "unknown_field",
            "unknown field; did you mean `training.max_steps`?",
        ),
    ),
    "trials to begin with": (
        {"enqueue": [{"training.learning_rat": 1}, {RATE: 5}]},
        (
            "enqueue.0.training.learning_rat",
            "conflict",
            "`enqueue.0.training.learning_rat` is not a field of `space`; did you mean "
            "`training.learning_rate`?",
        ),
        (
            f"enqueue.1.{RATE}",
            "conflict",
            f"`enqueue.1.{RATE}` is 5, which is outside of the field's values in `space`",
        ),
    ),
    "the template and the search at once": (
        {"job.training": {"eval_strategy": "stepz"}, "max_trial": 3, "max_parallel": 0},
        (
            "job.training.eval_strategy",
            "invalid_value",
            "must be `no` or `steps` or `epoch`; did you mean `steps`?",
        ),
        ("max_parallel", "invalid_value", "must be at least 1 and at most 1000"),
        ("max_trial", "unknown_field", "unknown field; did you mean `max_trials`?"),
    ),
    "a grid of the task's own space": (
        {"sampler": "grid", "space": None},
        (
            f"space.{RATE}",
            "conflict",
            f"`space.{RATE}` has no end of values, and `sampler` `grid` tries each one: give "
            "it a `step`, or list `choices`",
        ),
    ),
    "a grid of whole bounds, in a field that takes fractions": (
        {"sampler": "grid", "space": {"training.weight_decay": {"low": 0, "high": 1}}},
        (
            "space.training.weight_decay",
            "conflict",
            "`space.training.weight_decay` has no end of values, and `sampler` `grid` tries "
            "each one: give it a `step`, or list `choices`",
        ),
    ),
    "a direction": (
        {"objective": {"metric": "f1", "direction": "minimise"}},
        (
            "objective.direction",
            "invalid_value",
            "must be `minimize` or `maximize`; did you mean `minimize`?",
        ),
    ),
    "a metric without a direction": (
        {
            "objective": "total",
            "job.task": {"type": "question-answering", "version_2_with_negative": True},
        },
        (
            "objective.direction",
            "missing_field",
            "`objective.metric` is `total`, for which no direction is better: set "
            "`objective.direction`, or choose one of `loss`, `exact_match`, `f1`, "
            "`HasAns_exact`, `HasAns_f1`, `NoAns_exact`, `NoAns_f1`, `best_exact`, `best_f1`",
        ),
    ),
    "the template's metric": (
        {
            "objective": None,
            "job.training": {"max_steps": 3, "metric_for_best_model": "exactmatch"},
        },
        (
            "job.training.metric_for_best_model",
            "unknown_metric",
            "`job.training.metric_for_best_model` is `exactmatch`, which the evaluation does "
            "not report; it reports `loss`, `exact_match`, `f1`; did you mean `exact_match`?",
        ),
    ),
    "a template that does not train": (
        {"job.mode": "evaluate", "job.training": None},
        ("job.mode", "conflict", "a search trains models, and `job.mode` is `evaluate`"),
    ),
    "a rung before the first evaluation": (
        {
            "pruner": {"name": "asha", "rungs": [10, 1000]},
            "job.training": {"eval_strategy": "steps", "eval_steps": 500},
        },
        (
            "pruner.rungs",
            "conflict",
            "the first rung is at 10 steps, and trials are evaluated every 500 "
            "(`job.training.eval_steps`): set `job.training.eval_steps` lower, or begin with "
            "500",
        ),
    ),
    "no evaluation before the end": (
        {"pruner": "patience", "job.training": {"eval_strategy": "steps", "max_steps": 90}},
        (
            "job.training.eval_steps",
            "conflict",
            "`pruner` `patience` compares trials during the training, which has 90 steps and "
            "is evaluated every 500: set `job.training.eval_steps` lower",
        ),
    ),
    "a refit that does not train": (
        {"best": {"action": "refit", "set": {"mode": "predict", "training.max_steps": 1.5}}},
        ("best.set.mode", "invalid_value", "a refit does not change it: the job trains a model"),
        ("best.set.training.max_steps", "invalid_type", "must be a whole number"),
    ),
    "the template and the space at once": (
        {"job.prio": 3, "space": {"training.learningrate": [1e-5]}},
        ("job.prio", "unknown_field", "unknown field; did you mean `priority`?"),
        (
            "space.training.learningrate",
            "unknown_field",
            "unknown field; did you mean `training.learning_rate`?",
        ),
    ),
}
