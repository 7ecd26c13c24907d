"""SearchSpec: everything that a client may set for a search. Unknown fields are refused."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from service.contract.fields.section import Rule, SpecModel
from service.contract.fields.types import Name
from service.contract.search import rules
from service.contract.search.objectives import Objective, Objectives
from service.contract.search.pruners import NoPruner, PrunerSpec
from service.contract.search.samplers import SamplerSpec, TpeSampler
from service.contract.search.space import MOST_DIMENSIONS, Dimension, Path, Value
from service.contract.spec.hub import HubSpec
from service.contract.spec.spec import JobSpec, Seconds

SEARCH_VERSION: Final = 1
MOST_TRIALS: Final = 100_000
MOST_PARALLEL: Final = 1000
MOST_ENQUEUED: Final = 1000


def _as_list(given: Any) -> Any:
    """One objective, or its metric alone."""
    if isinstance(given, str):
        return [{"metric": given}]
    return [given] if isinstance(given, dict) else given


class KeepBest(SpecModel):
    """The best trial's job stays as it is."""

    action: Literal["keep"] = "keep"


class PublishBest(SpecModel):
    """The best trial's model is pushed to the Hub."""

    action: Literal["publish"] = "publish"
    hub: HubSpec | None = Field(
        None,
        examples=[{"model_id": "my-team/squad-best"}],
        description="Default: the template's `hub`.",
    )


class RefitBest(SpecModel):
    """A job of its own trains with the best trial's values again, usually with more data or
    steps, and is pushed if it has a `hub` section."""

    action: Literal["refit"] = "refit"
    set: dict[Path, Value] = Field(
        default_factory=dict,
        max_length=MOST_DIMENSIONS,
        examples=[{"training.num_train_epochs": 3}],
        description="What that job does otherwise, by path.",
    )


BestSpec = Annotated[
    KeepBest | PublishBest | RefitBest,
    Field(discriminator="action"),
    BeforeValidator(lambda given: {"action": given} if isinstance(given, str) else given),
]


class SearchSpec(SpecModel):
    """A search of hyper-parameters: a template, what varies in it, and what is looked for."""

    name: Name | None = Field(
        None,
        examples=["squad-rates"],
        description="Its trials are named after it; default: the template's name.",
    )
    job: JobSpec = Field(
        examples=[
            {
                "task": "question-answering",
                "model": {"name_or_path": "distilbert/distilbert-base-uncased"},
                "dataset": {"source": "hub", "name": "rajpurkar/squad", "validation": "validation"},
            }
        ],
        description="The template: a job spec as POST /v1/jobs takes it. Its `hub` section is for "
        "the best model only.",
    )
    space: dict[Path, Dimension] | None = Field(
        None,
        min_length=1,
        max_length=MOST_DIMENSIONS,
        examples=[{"training.learning_rate": {"low": 1e-6, "high": 1e-3, "log": True}}],
        description="Fields of the template by path, and their values. Default: the task's.",
    )
    objective: (
        Annotated[
            Objectives,
            BeforeValidator(_as_list, json_schema_input_type=Objectives | Objective | Name),
        ]
        | None
    ) = Field(
        None,
        examples=[{"metric": "f1", "direction": "maximize"}],
        description="One metric, or several. Default: the template's `metric_for_best_model`, or "
        "the task's.",
    )
    sampler: SamplerSpec = Field(
        default_factory=TpeSampler,
        discriminator="name",
        description="How the values of the next trial are chosen. A name alone has the defaults.",
    )
    pruner: PrunerSpec = Field(
        default_factory=NoPruner,
        discriminator="name",
        description="Which trials stop early. A name alone has the defaults.",
    )
    max_trials: int = Field(
        20, ge=1, le=MOST_TRIALS, description="Trials in all, those to begin with included."
    )
    max_parallel: int = Field(
        1,
        ge=1,
        le=MOST_PARALLEL,
        description="Trials that may run at once, as far as workers and quotas allow.",
    )
    timeout_seconds: Seconds | None = Field(
        None,
        examples=[86400],
        description="No trial begins later than this; those that run go on to their end.",
    )
    stop_after_trials_without_gain: int | None = Field(
        None,
        ge=1,
        le=MOST_TRIALS,
        examples=[20],
        description="No trial begins after this many finished ones in a row that were not better "
        "than the best before them.",
    )
    template_trial: bool = Field(
        default=True, description="Whether trial 0 has the template's own values."
    )
    enqueue: list[dict[Path, Value]] = Field(
        default_factory=list,
        max_length=MOST_ENQUEUED,
        examples=[[{"training.learning_rate": 3e-5}]],
        description="Trials to begin with, by path; the sampler chooses the values left out.",
    )
    on_failure: Literal["skip", "stop"] = Field(
        "skip",
        description="What a failed trial means: the search continues without it, or ends.",
    )
    best: BestSpec = Field(default_factory=KeepBest, description="What becomes of the best trial.")

    @model_validator(mode="before")
    @classmethod
    def _names_alone(cls, given: Any) -> Any:
        """`sampler: random` is short for `sampler: {name: random}`."""
        if not isinstance(given, dict):
            return given
        short = {
            name: {"name": given[name]}
            for name in ("sampler", "pruner")
            if isinstance(given.get(name), str)
        }
        return {**given, **short}

    @classmethod
    def rules(cls) -> tuple[Rule, ...]:
        return RULES

    @property
    def objectives(self) -> list[Objective]:
        """Those of a search that was accepted, which names them."""
        return self.objective or []

    @property
    def dimensions(self) -> dict[str, Dimension]:
        """Those of a search that was accepted, which names them."""
        return self.space or {}


RULES: Final[tuple[Callable[[SearchSpec], Iterator[str]], ...]] = (
    lambda search: rules.grid_is_finite(search.sampler, search.space),
    lambda search: rules.grid_has_whole_trials(search.sampler, search.enqueue, search.space),
    lambda search: rules.best_is_one(search.best.action, search.objective),
    lambda search: rules.objectives_fit_the_pruner(search.pruner, search.objective),
    lambda search: rules.objectives_differ(search.objective),
    lambda search: rules.choices_are_few(search.space),
    lambda search: rules.conditions_are_few(search.space),
    lambda search: rules.conditions_have_their_fields(search.space),
    lambda search: rules.conditions_can_be_met(search.space),
    lambda search: rules.paths_do_not_overlap(search.space),
    lambda search: rules.trials_to_begin_with_are_few(search.enqueue, search.max_trials),
    lambda search: rules.enqueued_values_are_in_the_space(search.enqueue, search.space),
)
"""The rules between sections, in the order in which they are reported."""
