"""A search as its user sees it: the line of a list, the whole page, and its trials."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from service.api.schemas.jobs import Progress, SpecWarning, mlflow_url
from service.api.schemas.numbers import Json, Number, StoredSearchSpec
from service.api.schemas.problems import Fault
from service.api.schemas.rows import Page, model_from_row
from service.contract.failures import Failure
from service.contract.search.objectives import Direction, Objective
from service.contract.search.spec import MOST_TRIALS
from service.contract.search.states import SearchAction, TrialState, actions
from service.contract.states import JobState
from service.settings import Settings
from service.store.searches.state import TrialAndJob
from service.store.tables.searches import SearchReportRow, SearchRow


class TrialCounts(BaseModel):
    """How many trials there are in each state."""

    running: int = 0
    paused: int = 0
    complete: int = 0
    pruned: int = 0
    failed: int = 0
    cancelled: int = 0


class SearchWaiting(BaseModel):
    """Why the search makes no trial at present."""

    code: str
    message: str


class SearchOutcome(BaseModel):
    """What becomes of the best trial."""

    action: Literal["publish", "refit"]
    job_id: str = Field(description="The job that publishes it, or is trained with its values.")


class BestTrial(BaseModel):
    trial: int
    scores: list[Number] = Field(description="One for each objective.")


class SearchSummary(BaseModel):
    """A line of the list."""

    object: Literal["search"] = "search"
    id: str = Field(examples=["search-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"])
    project: str
    name: str | None
    task: str
    state: JobState
    max_trials: int
    trials: TrialCounts
    best: list[BestTrial] = Field(
        description="The best trial so far; with several objectives, those that no other trial "
        "beats in all of them."
    )
    waiting: SearchWaiting | None
    failure: Failure | None = Field(description="Why it failed, and what to do about it.")
    actions: list[SearchAction] = Field(description="What can be done to it now.")
    mlflow_url: str | None = Field(description="The page of its run, which contains the trials'.")
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None = Field(description="When the first trial was made.")
    ended_at: datetime | None

    @classmethod
    def from_row(cls, row: SearchRow, settings: Settings, **others: Any) -> Self:
        return model_from_row(
            cls,
            row,
            project=row.project_id,
            trials=TrialCounts(**row.counts),
            best=[
                BestTrial(trial=number, scores=scores)
                for number, scores in zip(row.best, row.best_scores, strict=True)
            ],
            actions=list(actions(JobState(row.state))),
            mlflow_url=mlflow_url(row, settings),
            **others,
        )


class ObjectiveOfSearch(BaseModel):
    metric: str = Field(examples=["eval_f1"])
    direction: Direction


class Search(SearchSummary):
    """The whole page."""

    objectives: list[ObjectiveOfSearch]
    outcome: SearchOutcome | None = Field(
        description="With `best: publish` or `refit`, once every trial has ended."
    )
    spec: StoredSearchSpec = Field(
        description="As it was submitted, with the defaults of the task for what was left out."
    )

    @classmethod
    def from_row(cls, row: SearchRow, settings: Settings, **others: Any) -> Self:
        return super().from_row(row, settings, objectives=cls.objectives_of(row), **others)

    @staticmethod
    def objectives_of(row: SearchRow) -> list[ObjectiveOfSearch]:
        given = [Objective.model_validate(each) for each in row.spec["objective"] or ()]
        return [ObjectiveOfSearch(metric=each.key, direction=each.goal) for each in given]


class SubmittedSearch(Search):
    warnings: list[SpecWarning] = Field(description="What may not be as intended.")


class SearchValidation(BaseModel):
    """What POST /v1/searches would do with the same body."""

    valid: bool
    spec: StoredSearchSpec | None = Field(
        description="If valid: the spec with the defaults of its task."
    )
    errors: list[Fault] = Field(description="If not valid: every fault.")
    warnings: list[SpecWarning] = Field(
        default_factory=list, description="What may not be as intended."
    )


class SearchList(Page):
    object: Literal["list"] = "list"
    data: list[SearchSummary]
    first_id: str | None
    last_id: str | None
    has_more: bool


class TrialReport(BaseModel):
    """What a trial had reached at a rung or an evaluation."""

    resource: int = Field(description="The rung in the pruner's `unit`, else the evaluation's.")
    step: int = Field(description="The optimizer step of the evaluation.")
    value: Number
    decision: Literal["continue", "pause", "prune"]
    at: datetime


class Trial(BaseModel):
    object: Literal["search.trial"] = "search.trial"
    trial: int = Field(description="Its number in the search, from 0.")
    job_id: str | None = Field(
        description="Its job; null when the spec refuses the combination of values."
    )
    origin: Literal["template", "enqueued", "sampled"]
    state: TrialState
    values: Json = Field(description="Path → value, of the fields that vary in this trial.")
    scores: list[Number] | None = Field(description="One for each objective, once complete.")
    score_step: int | None = Field(description="The step of the evaluation that they are from.")
    reason: str | None = Field(description="Why it was pruned or failed, in a sentence.")
    failure: Failure | None
    reports: list[TrialReport] = Field(description="The last 100, in their order.")
    job_state: JobState | None = Field(description="null when its job was deleted.")
    progress: Progress | None
    created_at: datetime
    ended_at: datetime | None

    @classmethod
    def from_rows(cls, found: TrialAndJob, reports: Sequence[SearchReportRow]) -> Self:
        row = found.trial
        return model_from_row(
            cls,
            row,
            trial=row.number,
            reports=[
                model_from_row(TrialReport, each, value="nan" if each.value is None else each.value)
                for each in reports
            ],
            job_state=found.job_state,
            progress=Progress.of_row(found.progress),
        )


class TrialList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Trial]
    first_id: int | None
    last_id: int | None
    has_more: bool


class BestTrials(BaseModel):
    """The best trial, or with several objectives those that no other one beats in all of them."""

    object: Literal["list"] = "list"
    objectives: list[ObjectiveOfSearch]
    data: list[Trial]


class Figure(BaseModel):
    """A figure as plotly.js takes it."""

    data: list[Json]
    layout: Json


class Extension(BaseModel, extra="forbid"):
    max_trials: int = Field(
        ge=1, le=MOST_TRIALS, description="Trials in all, the earlier included."
    )


class SearchDeleted(BaseModel):
    id: str
    deleted: Literal[True] = True


class SearchStateOf(BaseModel):
    """The answer to an action."""

    id: str
    state: JobState
