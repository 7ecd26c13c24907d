"""What the service takes and answers. Made by `make client-types` from its OpenAPI document: do not edit."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from finetune_client.model import Model
from typing_extensions import TypeAliasType
from pydantic import AwareDatetime, Field, StringConstraints


Action = TypeAliasType(
    "Action",
    Literal[
        "pause", "resume", "cancel", "retry", "clone", "promote", "publish", "delete"
    ],
)
"""What a user can do to a job, in the words of the routes and of the command line."""


class Artifact(Model):
    name: str
    """Path in GET /v1/jobs/{id}/artifacts/{path}."""
    bytes: int
    sha256: str
    created_at: AwareDatetime
    url: str
    """Path of the download on this server."""


class ArtifactPage(Model):
    data: list[Artifact]
    has_more: bool


class AshaPruner(Model):
    """
    Asynchronous successive halving (Li et al. 2020). A trial that is not among the best at its
    rung is paused; when it is later, it continues where it was.
    """

    unit: Literal["steps", "epochs"] = "steps"
    """What this section counts: optimizer steps, or passes over the data. Default: `epochs` where the template has `eval_strategy: epoch`, else `steps`."""
    min_resource: int | None = None
    """The first rung, in `unit`: what a trial trains before it is compared. Default: the first evaluation."""
    reduction_factor: int = 3
    """Of this many trials, one continues from a rung to the next."""
    name: Literal["asha"] = "asha"
    rungs: list[int] | None = None
    """The rungs themselves, in `unit`. Default: `min_resource`, and each `reduction_factor` times the one before."""
    min_early_stopping_rate: int = 0
    """This many of the first rungs are left out."""


class BadRow(Model):
    place: str
    reason: str
    """Rows are counted by it."""
    problem: str
    """What is wrong with it, for a person."""
    check: str | None = None
    """OpenAI's name for the check that the row fails, if it publishes one."""


class BestMetric(Model):
    """The best evaluation of a training."""

    name: str
    """`metric_for_best_model`."""
    value: float | str
    step: int | None


class BestTrial(Model):
    trial: int
    scores: list[float | str]
    """One for each objective."""


class Checkpoint(Model):
    step: int
    bytes: int
    manifest_sha256: str
    metric: float | str | None
    """Value of metric_for_best_model at this step."""
    best: bool
    created_at: AwareDatetime
    pruned_at: AwareDatetime | None
    """When it was removed to make room."""


class CheckpointFile(Model):
    name: str
    bytes: int
    sha256: str
    url: str
    """Path of the download on this server."""


class CheckpointPage(Model):
    data: list[Checkpoint]
    has_more: bool


class DDPSpec(Model):
    """Each process holds the whole model and trains on its share of every batch."""

    type: Literal["ddp"] = "ddp"
    """Data parallel."""
    timeout: int = 1800
    """Seconds that a process waits for the gradients of the others."""
    find_unused_parameters: bool | None = None
    """Look in each step for weights that got no gradient. Default: true, but false with `activation_checkpointing`, as in Trainer."""
    bucket_cap_mb: int = 25
    """Gradients that are sent at once."""
    broadcast_buffers: bool = True
    """Buffers follow the first process's."""
    gradient_as_bucket_view: bool = False
    """Saves a copy of the gradients."""
    static_graph: bool = False
    """The same weights get gradients in every step of the training."""


class DeepSpeedSpec(Model):
    """Each process has all weights and updates its shard of them."""

    type: Literal["deepspeed"] = "deepspeed"
    """DeepSpeed's ZeRO."""
    timeout: int = 1800
    """Seconds that a process waits for the others."""
    zero_stage: Literal[1, 2] = 2
    """1: shards the optimizer state; 2: gradients as well."""
    offload_optimizer_device: Literal["none", "cpu"] = "none"
    """`cpu`: keep the optimizer state, and update the weights, on the CPU."""
    reduce_bucket_size: int = 500000000
    """Gradient elements that are reduced at once."""
    allgather_bucket_size: int = 500000000
    """Weight elements that are gathered at once."""
    overlap_comm: bool = False
    """Send gradients during the backward pass; takes more memory."""
    contiguous_gradients: bool = True
    """Copy gradients into one buffer as they are made."""
    reduce_scatter: bool = True
    """Each process receives only the sums of its shard."""
    round_robin_gradients: bool = False
    """With `offload_optimizer_device: cpu`: copy in parallel."""


DeliveryState = TypeAliasType(
    "DeliveryState", Literal["pending", "delivered", "failed"]
)


DimensionType = TypeAliasType("DimensionType", Literal["int", "float"])


DisabledReason = TypeAliasType("DisabledReason", Literal["user", "gone", "failing"])


class Event(Model):
    seq: int
    """1, 2, 3 … of this job, without gaps."""
    at: AwareDatetime
    type: str
    epoch: int
    """Number of the claim it belongs to; 0 before the first."""
    data: dict[str, Any]


class EventPage(Model):
    data: list[Event]
    has_more: bool


class Extension(Model):
    max_trials: int
    """Trials in all, the earlier included."""


FailureCode = TypeAliasType(
    "FailureCode",
    Literal[
        "missing_column",
        "unreadable_row",
        "label_mismatch",
        "empty_dataset",
        "dataset_not_found",
        "dataset_access_denied",
        "unsupported_format",
        "data_changed",
        "data_too_large",
        "model_not_found",
        "model_access_denied",
        "unsafe_weights",
        "invalid_model",
        "model_too_large",
        "unsupported_architecture",
        "slow_tokenizer",
        "sequence_too_long",
        "no_pad_token",
        "invalid_option",
        "out_of_memory",
        "non_finite_loss",
        "checkpoint_unreadable",
        "disk_full",
        "disk_limit",
        "process_limit",
        "worker_lost",
        "hung",
        "crash_limit",
        "device_error",
        "shared_memory_full",
        "gpu_used_twice",
        "insufficient_resources",
        "sandbox_incomplete",
        "stage_untrustworthy",
        "files_missing",
        "timeout",
        "cancelled",
        "trial_pruned",
        "hub_unauthorized",
        "hub_forbidden",
        "hub_conflict",
        "hub_rate_limited",
        "hub_unavailable",
        "hub_rejected",
        "network",
        "quota_exceeded",
        "secret_unavailable",
        "internal",
    ],
)


class Fault(Model):
    """One thing that is wrong with a request."""

    path: str
    """The field, for example `training.learning_rate`; empty: the whole body."""
    code: str
    """`unknown_field`, `missing_field`, `invalid_value`, `invalid_type`, `conflict`, `unsupported_option`, `moved_option`, `unknown_file`, `path_not_allowed` …"""
    message: str
    """What is wrong, for a person."""
    given: Any = None
    """The value that was given, shortened; secrets are hidden."""
    allowed: str | list[str] | None = None
    """The values that are allowed."""
    suggestion: str | None = None
    """The nearest right name or value."""


class Figure(Model):
    """A figure as plotly.js takes it."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]


class FileDeleted(Model):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class FileObject(Model):
    id: str
    object: Literal["file"] = "file"
    project: str = "default"
    """Id of the project that owns it."""
    bytes: int
    created_at: int
    """Unix seconds."""
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: str | None = None
    expires_at: int | None = None
    """Unix seconds; null: it does not expire."""
    sha256: str
    """Of the content, in hex."""


GenerateSpecEarlyStopping = TypeAliasType("GenerateSpecEarlyStopping", Literal["never"])


GenerationSpecEarlyStopping = TypeAliasType(
    "GenerationSpecEarlyStopping", Literal["never"]
)


class GpSampler(Model):
    """Gaussian process, for few and expensive trials. The reconciler needs torch for it."""

    seed: int = 0
    """The same seed and the same results give the same trials, in any search."""
    name: Literal["gp"] = "gp"
    n_startup_trials: int = 10
    """The first trials are random; from then on it learns from the results."""
    deterministic_objective: bool = False
    """Whether equal values give equal results, as with a fixed `training.seed`."""


class GridSampler(Model):
    """Every combination once, in an order that the seed decides."""

    seed: int = 0
    """The same seed and the same results give the same trials, in any search."""
    name: Literal["grid"] = "grid"


class HubDataset(Model):
    columns: dict[str, str] | None = None
    """The task's column → yours, for example {"context": "passage"}."""
    max_train_samples: int | None = None
    """Use only the first rows, at most this many."""
    validation_split_percentage: int | None = None
    """Share of the training rows to validate with when `validation` is not given; which ones follows from the seed (`data_seed`, else `seed`)."""
    on_bad_row: Literal["fail", "skip"] = "fail"
    """`fail` ends the job and names the rows that cannot be used; `skip` leaves them out and counts them in `data_report.json`."""
    max_bad_fraction: float = 0.05
    """`on_bad_row: skip`: share of a split's rows that may be left out; the job fails above it."""
    max_eval_samples: int | None = None
    max_predict_samples: int | None = None
    source: Literal["hub"]
    name: str
    config: str | None = None
    revision: str | None = None
    """Branch, tag or commit; resolved to a commit."""
    train: str = "train"
    """Split, may be a slice such as `train[:10%]`."""
    validation: (
        str
        | dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")], str]
        | None
    ) = None
    """Or several as {name: …}, evaluated each: `eval_<name>_<metric>`."""
    test: str | None = None


class HubSpec(Model):
    """Push the finished model to the Hub. Without this section it stays on the server."""

    model_id: str
    """`namespace/name`; a name alone is in the namespace of the job's token. `prepare` asks the Hub whether the token may write there, and creates the repository."""
    private: bool = True
    """Whether a repository that the job creates is private."""
    revision: str = "main"
    """Branch to commit to; created if it is missing."""
    commit_message: str | None = None
    license: str | None = None
    """Licence id for the model card; default: that of the base model's card."""
    strategy: Literal["end", "every_save", "checkpoint", "all_checkpoints"] = "end"
    """When the model is pushed. `end`: when the job ends; `every_save`: also at every checkpoint, during the training; `checkpoint`: with the latest checkpoint, as `last-checkpoint`; `all_checkpoints`: with each checkpoint, as `checkpoint-<step>`. A checkpoint written during a push waits, and is skipped if a newer one is written first."""
    always_push: bool = False
    """Whether no checkpoint is skipped, as `hub_always_push` of the Trainer: each waits for its turn. Those that still wait when the training ends are pushed before the finished model, unless `save_total_limit` has removed them by then."""


class HyperbandPruner(Model):
    """Several brackets of successive halving, whose first rungs differ (Li et al. 2018)."""

    unit: Literal["steps", "epochs"] = "steps"
    """What this section counts: optimizer steps, or passes over the data. Default: `epochs` where the template has `eval_strategy: epoch`, else `steps`."""
    min_resource: int | None = None
    """The first rung, in `unit`: what a trial trains before it is compared. Default: the first evaluation."""
    reduction_factor: int = 3
    """Of this many trials, one continues from a rung to the next."""
    name: Literal["hyperband"] = "hyperband"
    max_resource: int | None = None
    """What a whole training takes, in `unit`. Default: as the template says."""


class IA3Spec(Model):
    """(IA)³: one factor for each output of attention, and for each input of feed-forward."""

    method: Literal["ia3"] = "ia3"
    target_modules: list[str] | str | None = None
    """Ends of module names, or one regular expression for whole names, or `all-linear`; default: what peft names for the model's type."""
    exclude_modules: list[str] | str | None = None
    """Not these, although `target_modules` names them."""
    modules_to_save: list[str] | None = None
    """Ends of names of modules that are trained whole. New heads always are."""
    feedforward_modules: list[str] | str | None = None
    """Those of `target_modules` whose input is scaled, not their output."""


class IgnoredOption(Model):
    """An option of TrainingArguments that is at its default and has no effect here."""

    path: str
    """Where, for example `training.logging_dir`."""
    given: Any | None = None
    """The value that was given, shortened; secrets are hidden."""
    reason: str
    """Why the option does not exist, and what to use instead."""


class JobDeleted(Model):
    id: str
    deleted: Literal[True] = True


class JobResult(Model):
    """The job's results so far; each stage adds its own."""

    metrics: dict[str, Any]
    """Final evaluation and a summary of training."""
    baseline: dict[str, Any]
    """The same metrics before the first step."""
    model_path: str | None
    """Folder of the finished model on the worker; null when it was removed."""
    weights_sha256: str | None
    steps: int | None
    epochs: float | str | None
    best_step: int | None
    """With `load_best_model_at_end` the step of the finished model, otherwise that of the best evaluation."""
    best_metric: float | str | None
    """The value of `metric_for_best_model` at `best_step`."""
    metric_for_best_model: str | None
    model_step: int | None
    """Step whose weights the finished model has; null for a job that did not train."""
    samples: list[dict[str, Any]]
    """A few predictions, in the task's own shape."""
    artifacts: list[Artifact]
    model_revision: str | None
    """Commit that the base model was taken from."""
    dataset_revision: str | None
    data_fingerprint: str | None
    splits: dict[str, Any]
    """Split → numbers of examples and features."""
    data_report: dict[str, Any] | None
    """How many rows of each split were used, and how long they are in tokens: the artifact `data_report.json` without the rows that were left out."""
    hub_commit: str | None


JobSpecTask = TypeAliasType(
    "JobSpecTask",
    Literal[
        "question-answering",
        "causal-lm",
        "masked-lm",
        "text-classification",
        "token-classification",
        "summarization",
        "translation",
        "chat",
        "preference",
        "reward",
    ],
)


JobState = TypeAliasType(
    "JobState",
    Literal[
        "queued",
        "running",
        "pausing",
        "paused",
        "cancelling",
        "cancelled",
        "succeeded",
        "failed",
    ],
)


class JobWebhook(Model):
    """A receiver of this job's events alone."""

    url: str
    """Where events are sent by POST; https, and a public address."""
    secret: str
    """The secret of the project that signs them. Its value is `whsec_` and base64."""
    events: list[
        Literal[
            "*",
            "job.*",
            "fine_tuning.job.*",
            "job.submitted",
            "job.queued",
            "job.running",
            "job.attempt_failed",
            "job.checkpoint",
            "job.paused",
            "job.succeeded",
            "job.failed",
            "job.cancelled",
            "fine_tuning.job.succeeded",
            "fine_tuning.job.failed",
            "fine_tuning.job.cancelled",
        ]
    ] = ["job.succeeded", "job.failed", "job.cancelled"]
    """Which events are sent: types, `job.*`, `fine_tuning.job.*` or `*`."""


JsonValue = TypeAliasType("JsonValue", Any)


class KeepBest(Model):
    """The best trial's job stays as it is."""

    action: Literal["keep"] = "keep"


class LengthBin(Model):
    """Rows with at least `from` and at most `to` tokens."""

    from_: Annotated[int, Field(alias="from")]
    to: int
    rows: int


class LogPart(Model):
    """A part of the log. The next one starts at `next_offset`, which is `size` at the end."""

    content: str
    offset: int
    next_offset: int
    size: int
    """Bytes of the log at this moment."""
    eof: bool
    """The job has ended and the log is complete."""


LoraSpecInitLoraWeights = TypeAliasType(
    "LoraSpecInitLoraWeights", Literal["gaussian", "orthogonal"]
)


class MaskedLMSpec(Model):
    """Restore tokens that were masked."""

    type: Literal["masked-lm"]
    text_column: str | None = None
    """Your column with the text; the same as `dataset.columns.text`."""
    mlm_probability: float = 0.15
    """Share of tokens to predict: 80 % masked, 10 % random, 10 % left as they are."""
    whole_word_mask: bool = False
    """All tokens of a word, or none of them."""
    line_by_line: bool = False
    """Each row is an example; otherwise rows are joined and cut."""
    max_seq_length: int | None = None
    """Tokens of an example; default: the smaller of 1024 and the model's limit."""
    top_k: int = 5
    """`mode: predict`: candidates for each mask of a row."""


class MedianPruner(Model):
    """
    Ends a trial whose best value so far is worse than the median of the finished trials at the
    same step (Golovin et al. 2017).
    """

    unit: Literal["steps", "epochs"] = "steps"
    """What this section counts: optimizer steps, or passes over the data. Default: `epochs` where the template has `eval_strategy: epoch`, else `steps`."""
    name: Literal["median"] = "median"
    n_startup_trials: int = 5
    """This many trials finish before any is ended."""
    n_warmup: int = 0
    """No trial ends before, in `unit`."""
    n_min_trials: int = 1
    """This many others must have reached the step."""


class MetricPoint(Model):
    seq: int
    kind: Literal["train", "eval", "system"]
    step: int
    epoch: float | str | None
    """Passes over the data so far."""
    at: AwareDatetime
    values: dict[str, float | str | None]
    """A number, or the string `nan`, `inf` or `-inf`."""


MixedPrecisionPolicySpecParamDtype = TypeAliasType(
    "MixedPrecisionPolicySpecParamDtype", Literal["float32", "bfloat16"]
)


MixedPrecisionPolicySpecReduceDtype = TypeAliasType(
    "MixedPrecisionPolicySpecReduceDtype", Literal["float32", "bfloat16"]
)


class ModelConfigSpec(Model):
    """A model without weights: they are drawn from `training.seed`."""

    model_type: str
    """As transformers names it in a config.json."""
    config_overrides: (
        dict[
            Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$")], JsonValue
        ]
        | None
    ) = None
    """Fields of the type's default configuration. Vocabulary and special ids are the tokenizer's unless they are here."""


ModelSpecCheckpoint = TypeAliasType("ModelSpecCheckpoint", Literal["best", "last"])


class NewWebhook(Model):
    url: str
    """Where events are sent by POST; https, and a public address."""
    events: list[
        Literal[
            "*",
            "job.*",
            "fine_tuning.job.*",
            "job.submitted",
            "job.queued",
            "job.running",
            "job.attempt_failed",
            "job.checkpoint",
            "job.paused",
            "job.succeeded",
            "job.failed",
            "job.cancelled",
            "fine_tuning.job.succeeded",
            "fine_tuning.job.failed",
            "fine_tuning.job.cancelled",
        ]
    ] = ["job.*"]
    """Which events are sent: types, `job.*`, `fine_tuning.job.*` or `*`."""
    description: str | None = None


class NoPruner(Model):
    """Every trial trains to its end."""

    name: Literal["none"] = "none"


class NsgaIISampler(Model):
    """A genetic algorithm (Deb et al. 2002), for several objectives."""

    seed: int = 0
    """The same seed and the same results give the same trials, in any search."""
    name: Literal["nsgaii"] = "nsgaii"
    population_size: int = 50
    """Trials of one generation; those of the first are random."""
    mutation_prob: float | None = None
    """Share of values that are drawn anew; default: 1 / fields."""
    crossover_prob: float = 0.9
    """Share of trials with two parents; the others have one."""
    swapping_prob: float = 0.5
    """Share of values that come from the second parent."""


ObjectiveDirection = TypeAliasType(
    "ObjectiveDirection", Literal["minimize", "maximize"]
)


class ObjectiveOfSearch(Model):
    metric: str
    direction: Literal["minimize", "maximize"]


class PathDataset(Model):
    columns: dict[str, str] | None = None
    """The task's column → yours, for example {"context": "passage"}."""
    max_train_samples: int | None = None
    """Use only the first rows, at most this many."""
    validation_split_percentage: int | None = None
    """Share of the training rows to validate with when `validation` is not given; which ones follows from the seed (`data_seed`, else `seed`)."""
    on_bad_row: Literal["fail", "skip"] = "fail"
    """`fail` ends the job and names the rows that cannot be used; `skip` leaves them out and counts them in `data_report.json`."""
    max_bad_fraction: float = 0.05
    """`on_bad_row: skip`: share of a split's rows that may be left out; the job fails above it."""
    max_eval_samples: int | None = None
    max_predict_samples: int | None = None
    source: Literal["path"]
    format: Literal["auto", "json", "jsonl", "csv", "parquet", "text", "squad"] = "auto"
    """`auto` decides by the name and the content."""
    train: list[str] | str | None = None
    """Absolute paths under the operator's FINETUNE_DATA_ROOTS. Required to train."""
    validation: (
        list[str]
        | str
        | dict[
            Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")],
            list[str] | str,
        ]
        | None
    ) = None
    """Or several as {name: …}, evaluated each: `eval_<name>_<metric>`."""
    test: list[str] | str | None = None


class PatiencePruner(Model):
    """Ends a trial that has not improved for `patience` evaluations."""

    unit: Literal["steps", "epochs"] = "steps"
    """What this section counts: optimizer steps, or passes over the data. Default: `epochs` where the template has `eval_strategy: epoch`, else `steps`."""
    name: Literal["patience"] = "patience"
    patience: int = 3
    """Evaluations in a row that may bring no gain."""
    min_delta: float = 0.0
    """What a gain must exceed, in the metric."""


Phase = TypeAliasType(
    "Phase",
    Literal[
        "resolving",
        "downloading",
        "checking",
        "tokenizing",
        "loading",
        "reference",
        "baseline",
        "training",
        "evaluating",
        "saving",
        "predicting",
        "logging_artifacts",
        "writing_model_card",
        "pushing",
    ],
)
"""What a stage is doing, in the words that a user sees."""


PredictRequestStep = TypeAliasType("PredictRequestStep", Literal["best", "last"])


PredictionState = TypeAliasType(
    "PredictionState", Literal["queued", "running", "succeeded", "failed", "cancelled"]
)


PreferenceSpecReference = TypeAliasType(
    "PreferenceSpecReference", Literal["model", "none"]
)


PrefixTuningSpecInitWeights = TypeAliasType(
    "PrefixTuningSpecInitWeights", Literal["zero"]
)


class PreviewBadRow(Model):
    place: str
    reason: str
    """Rows are counted by it."""
    problem: str
    """What is wrong with it, for a person."""


class PreviewEpoch(Model):
    """One pass over the training rows, from those that were read."""

    is_exact: bool
    """false: estimated from the rows that were read."""
    rows: int
    features: int
    trained_tokens: int | None
    batches: int
    """Of all processes together."""
    optimizer_steps: int
    total_steps: int
    """Of the whole training."""


class PreviewLengths(Model):
    """Tokens of the rows before anything is cut."""

    total: int
    min: int
    mean: float
    p50: int
    p90: int
    p95: int
    p99: int
    max: int
    histogram: list[LengthBin]
    """Of equal width; the last one also holds the longest 1 % of the rows."""


class PreviewSplit(Model):
    """The rows of one split that were read. Some tasks add counts of their own."""

    rows_read: int
    rows_usable: int
    rows_bad: int
    bad_by_reason: dict[str, int]
    bad_rows: list[PreviewBadRow]
    """The first of them."""
    is_whole: bool
    """Whether these are all rows of the split."""
    rows_estimated: int | None = None
    """Of the whole split; null where only reading it all would tell."""
    features: int | None = None
    """What the model is given: rows, windows, blocks or packed rows."""
    tokens: PreviewLengths | None = None
    truncated: int | None = None
    """Rows longer than `max_length`."""
    target_tokens: PreviewLengths | None = None
    targets_truncated: int | None = None
    windows_per_example: dict[str, int] | None = None
    labels: dict[str, int] | None = None
    """Label → rows that have it, or words: the most frequent 100. null where there are none."""
    trained_tokens: int | None = None
    """Tokens of these features that count in the loss; null: labels do."""


PreviewState = TypeAliasType(
    "PreviewState", Literal["queued", "running", "succeeded", "failed"]
)


class Problem(Model):
    """RFC 9457. `code` is stable; `detail` is for people and may change."""

    type: str
    """`urn:finetune:problem:` and the code."""
    title: str
    status: int
    detail: str
    message: str
    """Title, detail and the first faults in one line: what to print of the error."""
    code: str
    instance: str
    """The path that was called."""
    request_id: str
    """The X-Request-Id header; the server's log has it, too."""
    errors: list[Fault] | None = None
    """With 422: every fault at once."""


class Progress(Model):
    """How far the running stage is."""

    step: int
    """Optimizer steps (train) or items (other stages) done."""
    of: int
    """How many there will be."""
    percent: float | None
    """0 to 100, one decimal; null when `of` is 0."""
    epoch: float | str | None = None
    loss: float | str | None = None
    examples_per_second: float | str | None = None
    eta_seconds: float | str | None = None


class PromptTuningSpec(Model):
    """Trained embeddings before those of the text."""

    method: Literal["prompt-tuning"] = "prompt-tuning"
    num_virtual_tokens: int
    prompt_tuning_init: Literal["RANDOM", "SAMPLE_VOCAB", "TEXT"] = "RANDOM"
    """Of the vocabulary's, or of `prompt_tuning_init_text`."""
    prompt_tuning_init_text: str | None = None
    """Repeated or cut to `num_virtual_tokens`."""


class PublishBest(Model):
    """The best trial's model is pushed to the Hub."""

    action: Literal["publish"] = "publish"
    hub: HubSpec | None = None
    """Default: the template's `hub`."""


class QmcSampler(Model):
    """Quasi-random sequences, which fill the space more evenly than random values do."""

    seed: int = 0
    """The same seed and the same results give the same trials, in any search."""
    name: Literal["qmc"] = "qmc"
    qmc_type: Literal["sobol", "halton"] = "sobol"
    """Sobol's sequence is most even where `max_trials` is a power of two."""
    scramble: bool = False
    """Shift the sequence at random; `seed` decides how."""


QuantizationSpecComputeDtype = TypeAliasType(
    "QuantizationSpecComputeDtype", Literal["float32", "bfloat16", "float16"]
)


QuantizationSpecQuantType = TypeAliasType(
    "QuantizationSpecQuantType", Literal["nf4", "fp4"]
)


QuestionAnsweringSpecNullScoreDiffThreshold = TypeAliasType(
    "QuestionAnsweringSpecNullScoreDiffThreshold", Literal["auto"]
)


class RandomSampler(Model):
    """Each value by chance, whatever the results are (Bergstra and Bengio 2012)."""

    seed: int = 0
    """The same seed and the same results give the same trials, in any search."""
    name: Literal["random"] = "random"


class RefitBest(Model):
    """
    A job of its own trains with the best trial's values again, usually with more data or
    steps, and is pushed if it has a `hub` section.
    """

    action: Literal["refit"] = "refit"
    set: (
        dict[
            Annotated[
                str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
            ],
            Any,
        ]
        | None
    ) = None
    """What that job does otherwise, by path."""


ResourcesSpecStrategy = TypeAliasType(
    "ResourcesSpecStrategy", Literal["ddp", "fsdp", "deepspeed"]
)


ResumeFromSpecCheckpoint = TypeAliasType(
    "ResumeFromSpecCheckpoint", Literal["best", "last"]
)


class RewardSpec(Model):
    """
    Teach a model to score answers, from pairs of a better and a worse one (Bradley and Terry
    1952; Ouyang et al. 2022, arXiv:2203.02155).
    """

    type: Literal["reward"]
    max_length: int | None = None
    """Tokens of a prompt with an answer; longer ones are cut at their end. Default: what nearly all training rows need, at most the model's limit; the job says what that is."""
    chat_template: str | None = None
    """The name of a template of ours (`chatml`, …), or the text of a Jinja template. Default: the model's own. Rows of text, for a model without a template, are joined as they are, with the end-of-text token after the answer."""
    center_rewards_coefficient: float | None = None
    """Keeps the mean reward near 0: the weight of the squared sum of a pair's rewards (Eisenstein et al. 2023, arXiv:2312.09244, who use 0.01). Default: off."""


SearchAction = TypeAliasType(
    "SearchAction", Literal["pause", "resume", "cancel", "extend", "delete"]
)
"""What a user can do to a search, in the words of the routes and of the command line."""


class SearchDeleted(Model):
    id: str
    deleted: Literal[True] = True


class SearchOutcome(Model):
    """What becomes of the best trial."""

    action: Literal["publish", "refit"]
    job_id: str
    """The job that publishes it, or is trained with its values."""


class SearchStateOf(Model):
    """The answer to an action."""

    id: str
    state: JobState


class SearchWaiting(Model):
    """Why the search makes no trial at present."""

    code: str
    message: str


class SecretRotation(Model):
    overlap_seconds: int = 86400
    """How long the old secret signs as well."""


class SecretsSpec(Model):
    """Names of secrets that `PUT /v1/secrets/{name}` has set; a spec never holds a value."""

    hub_token: str | None = None
    """The Hub token with which `prepare` downloads and `publish` pushes. Default: the operator's, which only jobs of the default project are given."""


class SpecWarning(Model):
    """A valid field that will probably not do what its author expects."""

    path: str
    """The field, for example `resources.gpus`."""
    code: str
    """`no_such_worker`, `steps_not_reached` …"""
    message: str
    """What to expect and what to do, for a person."""


Stage = TypeAliasType("Stage", Literal["prepare", "train", "publish"])


class StageTimeouts(Model):
    """Running time of one stage, over all its attempts, in seconds."""

    prepare: int | None = None
    train: int | None = None
    publish: int | None = None


class StageTimes(Model):
    """One stage, over all its attempts."""

    stage: Stage
    attempts: int
    started_at: AwareDatetime | None
    """Start of the first attempt."""
    ended_at: AwareDatetime | None
    """End of the last attempt; null while it runs."""
    outcome: str | None
    """Of the last attempt: `finished`, `failed`, `cancelled`, `lost`, `released`; null while it runs or when there is none."""
    running_seconds: float
    """Of the attempts that have ended, together."""


TextClassificationSpecLabelFormat = TypeAliasType(
    "TextClassificationSpecLabelFormat", Literal["vector", "indices", "names"]
)


TextClassificationSpecProblemType = TypeAliasType(
    "TextClassificationSpecProblemType",
    Literal["single_label_classification", "multi_label_classification", "regression"],
)


class TokenClassificationSpec(Model):
    """A tag for each word, for example of named entities."""

    type: Literal["token-classification"]
    label_names: list[str] | None = None
    """The tags in the order of the model's outputs; whole numbers in the data are places in it. Default: the training rows' tags, sorted."""
    label_all_tokens: bool = False
    """Train on every token of a word, those behind the first with I- for B-; else on its first only. Evaluation always uses the first token."""
    max_seq_length: int | None = None
    """Tokens with specials; words beyond are neither trained on nor evaluated. Default: the smaller of 512 and the model's limit."""


class TpeSampler(Model):
    """Tree-structured Parzen estimator (Bergstra et al. 2011; Watanabe 2023)."""

    seed: int = 0
    """The same seed and the same results give the same trials, in any search."""
    name: Literal["tpe"] = "tpe"
    n_startup_trials: int = 10
    """The first trials are random; from then on it learns from the results."""
    n_ei_candidates: int = 24
    """Values that are drawn for a trial; the best one is tried."""
    multivariate: bool = True
    """Consider all fields together."""
    group: bool = False
    """Consider those fields together that occur together."""
    constant_liar: bool = True
    """Keep away from the values of trials that still run."""
    prior_weight: float = 1.0
    """How much an even spread over the whole space counts against the results."""


class TrackingSpec(Model):
    experiment_name: str = "finetune"
    run_name: str | None = None
    """Default: the job's name, or its id."""
    tags: (
        dict[Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$")], str]
        | None
    ) = None
    log_model: bool = True
    """Log the finished model as an MLflow artifact."""
    tensorboard: bool = False
    """Write TensorBoard's event file of the training, as an artifact of the job and of its run: `tensorboard/events.out.tfevents.<job id>`."""
    register_as: str | None = None
    """Register the finished model under this name in MLflow's model registry: one version for each job."""
    register_alias: str = "newest"
    """Alias that is moved to the version which the job registers."""


class TrainedSpan(Model):
    """Neighbouring tokens that count in the loss, each `end` exclusive."""

    start: int
    """The first of these tokens."""
    end: int
    text_start: int
    """Where they begin in `text`, in characters."""
    text_end: int


TrainingSpecTorchCompileBackend = TypeAliasType(
    "TrainingSpecTorchCompileBackend",
    Literal["inductor", "cudagraphs", "aot_eager", "eager"],
)


TrainingSpecTorchCompileMode = TypeAliasType(
    "TrainingSpecTorchCompileMode",
    Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"],
)


class TrialCounts(Model):
    """How many trials there are in each state."""

    running: int = 0
    paused: int = 0
    complete: int = 0
    pruned: int = 0
    failed: int = 0
    cancelled: int = 0


class TrialReport(Model):
    """What a trial had reached at a rung or an evaluation."""

    resource: int
    """The rung in the pruner's `unit`, else the evaluation's."""
    step: int
    """The optimizer step of the evaluation."""
    value: float | str
    decision: Literal["continue", "pause", "prune"]
    at: AwareDatetime


TrialState = TypeAliasType(
    "TrialState",
    Literal["running", "paused", "complete", "pruned", "failed", "cancelled"],
)


class UploadDataset(Model):
    columns: dict[str, str] | None = None
    """The task's column → yours, for example {"context": "passage"}."""
    max_train_samples: int | None = None
    """Use only the first rows, at most this many."""
    validation_split_percentage: int | None = None
    """Share of the training rows to validate with when `validation` is not given; which ones follows from the seed (`data_seed`, else `seed`)."""
    on_bad_row: Literal["fail", "skip"] = "fail"
    """`fail` ends the job and names the rows that cannot be used; `skip` leaves them out and counts them in `data_report.json`."""
    max_bad_fraction: float = 0.05
    """`on_bad_row: skip`: share of a split's rows that may be left out; the job fails above it."""
    max_eval_samples: int | None = None
    max_predict_samples: int | None = None
    source: Literal["upload"]
    format: Literal["auto", "json", "jsonl", "csv", "parquet", "text", "squad"] = "auto"
    """`auto` decides by the name and the content."""
    train: list[str] | str | None = None
    """Ids from POST /v1/files. Required to train."""
    validation: (
        list[str]
        | str
        | dict[
            Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")],
            list[str] | str,
        ]
        | None
    ) = None
    """Or several as {name: …}, evaluated each: `eval_<name>_<metric>`."""
    test: list[str] | str | None = None


WaitingReason = TypeAliasType(
    "WaitingReason",
    Literal[
        "backoff",
        "no_worker",
        "busy_workers",
        "over_quota",
        "insufficient_resources",
        "paused",
        "queued",
    ],
)


class Webhook(Model):
    id: str
    object: Literal["webhook"] = "webhook"
    project: str
    url: str
    events: list[str]
    description: str | None
    enabled: bool
    disabled_at: AwareDatetime | None
    disabled_reason: DisabledReason | None
    """`user`; `gone`: the receiver answered 410; `failing`: it has failed for days."""
    failing_since: AwareDatetime | None
    """The first failure since the last success."""
    previous_secret_until: AwareDatetime | None
    """Until then the secret before the last rotation signs as well."""
    created_at: AwareDatetime
    updated_at: AwareDatetime


WebhookChangesEventsItem = TypeAliasType(
    "WebhookChangesEventsItem",
    Literal[
        "*",
        "job.*",
        "fine_tuning.job.*",
        "job.submitted",
        "job.queued",
        "job.running",
        "job.attempt_failed",
        "job.checkpoint",
        "job.paused",
        "job.succeeded",
        "job.failed",
        "job.cancelled",
        "fine_tuning.job.succeeded",
        "fine_tuning.job.failed",
        "fine_tuning.job.cancelled",
    ],
)


class WebhookDeleted(Model):
    id: str
    deleted: Literal[True] = True


class WebhookList(Model):
    object: Literal["list"] = "list"
    data: list[Webhook]


class WebhookWithSecret(Model):
    id: str
    object: Literal["webhook"] = "webhook"
    project: str
    url: str
    events: list[str]
    description: str | None
    enabled: bool
    disabled_at: AwareDatetime | None
    disabled_reason: DisabledReason | None
    """`user`; `gone`: the receiver answered 410; `failing`: it has failed for days."""
    failing_since: AwareDatetime | None
    """The first failure since the last success."""
    previous_secret_until: AwareDatetime | None
    """Until then the secret before the last rotation signs as well."""
    created_at: AwareDatetime
    updated_at: AwareDatetime
    secret: str
    """What signs its events. It is shown this once."""


class CheckpointDetail(Checkpoint):
    last: bool
    """Whether it is the job's latest checkpoint."""
    metrics: dict[str, Any]
    """Results of the evaluation at this step; empty without one."""
    files: list[CheckpointFile]
    """Empty when it was removed to make room."""
    archive_url: str | None
    """All files as one tar archive; null when removed."""


class Delivery(Model):
    id: str
    object: Literal["webhook.delivery"] = "webhook.delivery"
    webhook: str | None
    """null: the job's spec names the receiver."""
    job: str | None
    """null: a test."""
    url: str | None
    """Of a receiver that the job's spec names."""
    event: str
    """The event's id, which is sent as `webhook-id`."""
    type: str
    state: DeliveryState
    tries: int
    created_at: AwareDatetime
    next_try_at: AwareDatetime | None
    ended_at: AwareDatetime | None
    status: int | None
    """HTTP status of the last answer."""
    answer: str | None
    """The beginning of the last answer."""
    error: str | None
    """Why the last try failed."""
    payload: dict[str, Any]


class DeliveryPage(Model):
    object: Literal["list"] = "list"
    data: list[Delivery]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Dimension(Model):
    """The values of one field: a range (`low`, `high`) or `choices`."""

    low: int | float | None = None
    """The least value; included."""
    high: int | float | None = None
    """The largest value; included."""
    log: bool = False
    """Whether as many values are tried between 0.001 and 0.01 as between 0.01 and 0.1, as suits a learning rate."""
    step: int | float | None = None
    """Only `low`, `low + step`, and so on; default for integers: 1."""
    type: DimensionType | None = None
    """Default: that of the field, which is `int` where it takes no fractions."""
    choices: list[Any] | None = None
    """The values one by one, each as a job's spec has it: also null, a list, or a whole section. In place of a dimension that has nothing else, the list alone will do."""
    when: (
        dict[
            Annotated[
                str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
            ],
            Any,
        ]
        | None
    ) = None
    """Vary the field only where each of these other fields of the space, which have `choices`, has this value (or one of this list of values); elsewhere the template's value applies."""


class Failure(Model):
    """Why a job or an attempt failed, in words for its user; never a traceback."""

    code: FailureCode
    message: str
    """What happened, with the names and numbers of this job."""
    action: str
    """What to do about it."""
    details: dict[str, Any] | None = None


class FileCheck(Model):
    """The faults that a job would find in the rows of a file."""

    object: Literal["file.check"] = "file.check"
    file_id: str
    filename: str
    task: str
    split: str
    format: str | None = None
    """As it was given or recognised."""
    complete: bool = False
    """false: the time was not enough for all rows, or `failure` is set."""
    rows_read: int = 0
    rows_usable: int = 0
    rows_bad: int = 0
    bad_by_reason: dict[str, int] | None = None
    bad_rows: list[BadRow] | None = None
    """Up to 100 of them."""
    realigned: int = 0
    """Question answering: answers found near where `answer_start` says."""
    usable_with: list[Literal["fail", "skip"]] | None = None
    """Values of `dataset.on_bad_row` with which a job could use the rows read."""
    failure: Failure | None = None
    """What a job would end with, however it deals with bad rows."""


class FileList(Model):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class GenerateSpec(Model):
    """Answers that evaluations generate: the likeliest tokens, unless `do_sample` is true."""

    min_length: int | None = None
    """Tokens of the shortest output."""
    min_new_tokens: int | None = None
    """The same, without the decoder's start token."""
    early_stopping: bool | GenerateSpecEarlyStopping | None = None
    """true: beam search ends with `num_beams` finished candidates."""
    length_penalty: float | None = None
    """Beam search: above 0 prefers longer outputs."""
    no_repeat_ngram_size: int | None = None
    """No n-gram of this size occurs twice; 0: off."""
    encoder_no_repeat_ngram_size: int | None = None
    """No n-gram of this size is taken from the source; 0: off."""
    repetition_penalty: float | None = None
    encoder_repetition_penalty: float | None = None
    do_sample: bool | None = None
    """Draw tokens at random; the draws follow from `training.seed`."""
    temperature: float | None = None
    """Of sampling."""
    top_k: int | None = None
    """Sampling: the likeliest k; 0: all."""
    top_p: float | None = None
    """Sampling: the likeliest tokens up to this probability."""
    max_new_tokens: int = 256
    """Tokens that are generated for an answer, at most."""
    num_beams: int | None = None
    """Of beam search; default: that of the model's config."""
    samples: int = 3
    """Answers that each evaluation shows, spread over the rows."""
    max_samples: int | None = None
    """Rows that are answered for `exact_match`, spread over the split; default: all of them. Without `exact_match` only the shown ones are answered."""
    exact_match: str | None = None
    """A regular expression that finds the result in an answer: the first group of its last match, or the whole match if it has no groups. The metric `exact_match` is the share of generated answers whose result is that of the row's own answer. For GSM8K: `#### (-?[\\d.,]+)`."""


class GenerationSpec(Model):
    """
    How texts are generated; names and meanings of `transformers.GenerationConfig`.

    Options left out are those of the model's own generation config.
    """

    min_length: int | None = None
    """Tokens of the shortest output."""
    min_new_tokens: int | None = None
    """The same, without the decoder's start token."""
    early_stopping: bool | GenerationSpecEarlyStopping | None = None
    """true: beam search ends with `num_beams` finished candidates."""
    length_penalty: float | None = None
    """Beam search: above 0 prefers longer outputs."""
    no_repeat_ngram_size: int | None = None
    """No n-gram of this size occurs twice; 0: off."""
    encoder_no_repeat_ngram_size: int | None = None
    """No n-gram of this size is taken from the source; 0: off."""
    repetition_penalty: float | None = None
    encoder_repetition_penalty: float | None = None
    do_sample: bool | None = None
    """Draw tokens at random; the draws follow from `training.seed`."""
    temperature: float | None = None
    """Of sampling."""
    top_k: int | None = None
    """Sampling: the likeliest k; 0: all."""
    top_p: float | None = None
    """Sampling: the likeliest tokens up to this probability."""


class MetricPage(Model):
    data: list[MetricPoint]
    has_more: bool


class MixedPrecisionPolicySpec(Model):
    """As `torch.distributed.fsdp.MixedPrecisionPolicy`."""

    param_dtype: MixedPrecisionPolicySpecParamDtype | None = None
    """Of the gathered weights; default: the weights' own, and `training.bf16` computes in bfloat16 from it."""
    reduce_dtype: MixedPrecisionPolicySpecReduceDtype | None = None
    """Gradients are summed up in it; default: `param_dtype`."""


class ModelSpec(Model):
    name_or_path: str | None = None
    """Hub id, or an absolute path under the operator's FINETUNE_MODEL_ROOTS. Required unless `job` or `config` is given."""
    job: str | None = None
    """Start from the model that another job of this service trained."""
    checkpoint: ModelSpecCheckpoint | int | None = None
    """Of `job`: `best`, `last` or the step of a checkpoint. Default: the job's finished model, which is what it published."""
    config: ModelConfigSpec | None = None
    """Train from scratch, without the weights of any model; needs `tokenizer_name`."""
    revision: str | None = None
    """Branch, tag or commit; resolved to a commit."""
    tokenizer_name: str | None = None
    """Default: that of the model."""
    config_name: str | None = None
    """Default: that of the model."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    """Of the loaded weights. `auto`: the checkpoint's own, but float32 instead of float16 when all weights are trained."""


class Objective(Model):
    """A metric, and whether more of it is better."""

    metric: str
    """A metric of the evaluation; `eval_` may be left out."""
    direction: ObjectiveDirection | None = None
    """Default: the direction of the metric. Required for a metric without one, such as `gen_len`."""


class PredictRequest(Model):
    rows: list[dict[str, JsonValue]]
    """With the columns of the job's task, without labels."""
    step: PredictRequestStep | int | None = None
    """Of a checkpoint: `best`, `last` or a step. Default: the finished model."""


class Prediction(Model):
    """What a model answers to a few inputs."""

    object: Literal["prediction"] = "prediction"
    id: str
    job: str | None
    """Whose model it is; null: a base model."""
    step: int | None
    """Of the checkpoint; null: the finished model."""
    state: PredictionState
    created_at: AwareDatetime
    ended_at: AwareDatetime | None
    expires_at: AwareDatetime
    """When it is removed."""
    waiting: str | None
    """Why no worker has begun, where something is known."""
    failure: Failure | None
    answers: list[dict[str, Any]] | None
    """One for each row, in order; null until the prediction has succeeded."""
    notices: list[str]
    """For example of texts that were cut."""


class PreferenceSpec(Model):
    """Teach a model which of two answers is the better one, or which answers are good."""

    type: Literal["preference"]
    loss_type: Literal[
        "sigmoid", "robust", "ipo", "apo_zero", "hinge", "simpo", "orpo", "kto"
    ] = "sigmoid"
    """sigmoid: DPO (Rafailov et al. 2023, arXiv:2305.18290), with `label_smoothing` conservative DPO; robust: DPO for labels that are partly wrong (Chowdhury et al. 2024, arXiv:2403.00409); ipo: a squared loss that does not overfit (Azar et al. 2023, arXiv:2310.12036), per token as its authors confirmed to TRL; hinge: SLiC (Zhao et al. 2023, arXiv:2305.10425); apo_zero: likelier good and unlikelier bad answers (D'Oosterlinck et al. 2024, arXiv:2408.06266); simpo: without a reference, by the mean over tokens (Meng et al. 2024, arXiv:2405.14734); orpo: without a reference, with the loss of the good answer (Hong et al. 2024, arXiv:2403.07691); kto: from rows with one answer each, good or bad (Ethayarajh et al. 2024, arXiv:2402.01306)."""
    beta: float = 0.1
    """How closely the model stays with its reference; higher is closer. For ipo the paper's τ, for orpo its λ. The default is TRL's for each loss; SimPO's authors use 2.0 to 2.5."""
    label_smoothing: float = 0.0
    """The share of pairs whose labels are taken to be wrong: `loss_type: sigmoid`, `simpo` (smoothed) and `robust` (unbiased)."""
    simpo_gamma: float | None = None
    """`loss_type: simpo`: the margin that the good answer's reward should have; default: 0.5."""
    desirable_weight: float | None = None
    """`loss_type: kto`: of good answers; default: 1."""
    undesirable_weight: float | None = None
    """`loss_type: kto`: of bad answers; default: 1."""
    reference: PreferenceSpecReference | None = None
    """model: rewards are relative to the model before training; its log-probabilities are computed once, before the first step, and kept for other jobs. none: relative to nothing. Default: model, for simpo and orpo none."""
    max_length: int | None = None
    """Tokens of a prompt with an answer; longer ones are cut at their end. Default: what nearly all training rows need, at most the model's limit; the job says what that is."""
    chat_template: str | None = None
    """The name of a template of ours (`chatml`, …), or the text of a Jinja template. Default: the model's own. Rows of text, for a model without a template, are joined as they are, with the end-of-text token after the answer."""
    generate: GenerateSpec | None = None
    """`mode: predict`: how answers are generated."""


class PrefixTuningSpec(Model):
    """Trained keys and values before those of the text, in every layer."""

    method: Literal["prefix-tuning"] = "prefix-tuning"
    num_virtual_tokens: int
    prefix_projection: bool = False
    """Make them by a small network."""
    encoder_hidden_size: int | None = None
    """Its width; default: the model's."""
    init_weights: PrefixTuningSpecInitWeights | None = None
    """Default: at random; not with `prefix_projection`."""


class PreviewExample(Model):
    """One feature, as the model is given it."""

    split: str
    text: str
    """Of all shown tokens together."""
    tokens: list[str]
    """The text of each, up to 2,048."""
    length: int
    """In tokens, those that are not shown included."""
    trained: list[TrainedSpan] | None
    """Of `tokens`, up to 256; null where the loss is of labels, or of tokens chosen anew in each batch: see `target`."""
    target: Any
    """What the model learns from it, in words, up to 8,192 characters; or a label for each token, null where none counts."""


class PreviewFindings(Model):
    """What was found before a failure is part of them."""

    rows_limit: int
    splits: dict[str, PreviewSplit] | None = None
    examples: list[PreviewExample] | None = None
    notices: list[str] | None = None
    unknown_tokens: float | None = None
    """Share of the tokens that the tokenizer has no entry for; null if its entries cover everything."""
    max_length: int | None = None
    """Tokens of the longest feature."""
    length_option: str | None = None
    """The option of `task` that it comes from."""
    epoch: PreviewEpoch | None = None
    """null where the number of rows is not known, or nothing is trained."""


class QuantizationSpec(Model):
    """Quantise the frozen weights with bitsandbytes; its names without `bnb_4bit_`."""

    bits: Literal[4, 8]
    quant_type: QuantizationSpecQuantType | None = None
    """4 bits; default: nf4."""
    double_quant: bool | None = None
    """4 bits: the scales in few bits as well; default: false."""
    compute_dtype: QuantizationSpecComputeDtype | None = None
    """4 bits: of the products; default: as `training.bf16` or fp16, else float32."""


class QuestionAnsweringSpec(Model):
    """Extractive question answering as SQuAD defines it, v1.1 and v2.0."""

    type: Literal["question-answering"]
    version_2_with_negative: bool = False
    """Some questions have no answer (SQuAD v2)."""
    max_seq_length: int = 384
    """Tokens of question, context and specials."""
    doc_stride: int = 128
    """Tokens that two windows of a context share."""
    n_best_size: int = 20
    max_answer_length: int = 30
    """Tokens of the longest answer considered."""
    null_score_diff_threshold: float | QuestionAnsweringSpecNullScoreDiffThreshold = 0.0
    """v2: no answer when the null score beats the best span by more than this; with `head: beam-search` when the answer's impossibility is above this. `auto`: the threshold with the best F1 on the validation set (the official script's `best_f1_thresh`, of the answers without a threshold; 0 where no answer at all is best). Each evaluation finds its own for its metrics and predictions; that of the finished model is kept in its config.json under this name and used for `test`. Jobs that do not train read it there."""
    head: Literal["span", "beam-search"] = "span"
    """beam-search: XLNet's, which looks for ends given the best starts."""
    start_n_top: int | None = None
    """Beam search: number of start positions; default: 5."""
    end_n_top: int | None = None
    """Beam search: end positions for each start; default: 5."""


class ResumeFromSpec(Model):
    """A checkpoint of another job, restored whole."""

    job: str
    """A job with the same task, model, data and optimizer."""
    checkpoint: ResumeFromSpecCheckpoint | int = "last"
    """`best`, `last` or the step of a checkpoint."""


class SearchSummary(Model):
    """A line of the list."""

    object: Literal["search"] = "search"
    id: str
    project: str
    name: str | None
    task: str
    state: JobState
    max_trials: int
    trials: TrialCounts
    best: list[BestTrial]
    """The best trial so far; with several objectives, those that no other trial beats in all of them."""
    waiting: SearchWaiting | None
    failure: Failure | None
    """Why it failed, and what to do about it."""
    actions: list[SearchAction]
    """What can be done to it now."""
    mlflow_url: str | None
    """The page of its run, which contains the trials'."""
    created_at: AwareDatetime
    updated_at: AwareDatetime
    started_at: AwareDatetime | None
    """When the first trial was made."""
    ended_at: AwareDatetime | None


class SummarizationSpec(Model):
    """A long text → a short one, with a sequence-to-sequence model."""

    type: Literal["summarization"]
    max_source_length: int = 1024
    """Tokens of a source; longer ones are cut."""
    max_target_length: int = 128
    """Tokens of a training target; longer ones are cut."""
    val_max_target_length: int | None = None
    """The same for evaluation; default: `max_target_length`."""
    generation_max_length: int | None = None
    """Tokens of the longest generated text; default: `val_max_target_length`."""
    num_beams: int | None = None
    """Of beam search; default: that of the model's config."""
    source_prefix: str = ""
    """Put before every source, as T5 expects it."""
    ignore_pad_token_for_loss: bool = True
    """false: the padding of targets counts in the loss."""
    predict_with_generate: bool = True
    """Generate in evaluations and score the texts; false: the loss only."""
    forced_bos_token: str | None = None
    """First token of every generated text: the target language for mBART-50, M2M100 and NLLB."""
    generation: GenerationSpec | None = None
    lang: str | None = None
    """Language code, for tokenizers that have such (mBART, NLLB, …)."""
    text_column: str | None = None
    """Your column with the texts; the same as `dataset.columns.text`."""
    summary_column: str | None = None
    """Your column with the summaries; likewise."""


class TextClassificationSpec(Model):
    """One label, several labels or a number for a text or a pair of texts."""

    type: Literal["text-classification"]
    problem_type: TextClassificationSpecProblemType | None = None
    """Default: what the training labels are: lists, several labels; numbers with a fraction, regression; else one label."""
    label_names: list[str] | None = None
    """The labels in the order of the model's outputs; whole numbers in the data are places in it. Default: the training rows' labels, sorted."""
    label_format: TextClassificationSpecLabelFormat | None = None
    """vector: a list with an entry for each label, 1 or true where the text has it, else 0 or false; indices: places in `label_names`; names: whole numbers are names, too. Default: what all rows together can only be; refused where lists can be both."""
    label_columns: list[str] | None = None
    """Your columns of several labels, one for each label, with 1 or true where the text has it, else 0 or false. They are the `label_names` if those are not given."""
    max_seq_length: int | None = None
    """Tokens with specials; longer texts are cut. Default: the smaller of 128 and the model's limit."""


class TrainingSpec(Model):
    num_train_epochs: float = 3.0
    """Passes over the data; may be a fraction."""
    max_steps: int = -1
    """Optimizer steps in all; overrides num_train_epochs when above 0."""
    per_device_train_batch_size: int = 8
    """Examples of one forward pass on each device."""
    per_device_eval_batch_size: int | None = None
    """The same while evaluating. null: 8; on a GPU four times as many as `per_device_train_batch_size`, if those are more (not with `fsdp`, whose evaluations cannot take smaller batches when memory runs out)."""
    gradient_accumulation_steps: int = 1
    """Batches per optimizer step; the loss is that of the whole large batch."""
    auto_find_batch_size: bool | None = None
    """When memory runs out: smaller batches and more accumulation, so that the large batch stays the same. An evaluation computes a batch that does not fit in parts, whatever this is. Default: `false`."""
    on_oom: Literal["fail", "halve_batch"] | None = None
    """`halve_batch` is `auto_find_batch_size` by another name. Default: `"fail"`."""
    optim: Literal[
        "adamw_torch",
        "adamw_torch_fused",
        "adamw_torch_4bit",
        "adamw_torch_8bit",
        "adafactor",
        "sgd",
        "adagrad",
        "rmsprop",
        "adamw_bnb_8bit",
        "adamw_8bit",
        "paged_adamw_32bit",
        "paged_adamw_8bit",
        "ademamix",
        "ademamix_8bit",
        "paged_ademamix_32bit",
        "paged_ademamix_8bit",
        "lion_32bit",
        "lion_8bit",
        "paged_lion_32bit",
        "paged_lion_8bit",
        "rmsprop_bnb",
        "rmsprop_bnb_32bit",
        "rmsprop_bnb_8bit",
    ] = "adamw_torch_fused"
    """See below."""
    optim_args: str | None = None
    """The optimizer's own: `momentum=0.9, nesterov=true`."""
    learning_rate: float = 5e-05
    """The highest one of the schedule."""
    weight_decay: float = 0.0
    """Not applied to biases and normalisation weights."""
    adam_beta1: float = 0.9
    """Of AdamW, AdEMAMix and Lion: decay of the mean."""
    adam_beta2: float = 0.999
    """Of the same: decay of the spread."""
    adam_epsilon: float = 1e-08
    """Of AdamW and AdEMAMix."""
    max_grad_norm: float = 1.0
    """0 turns clipping off."""
    lr_scheduler_type: Literal[
        "linear",
        "cosine",
        "cosine_with_restarts",
        "polynomial",
        "constant",
        "constant_with_warmup",
        "inverse_sqrt",
        "reduce_lr_on_plateau",
        "cosine_with_min_lr",
        "cosine_warmup_with_min_lr",
        "warmup_stable_decay",
        "greedy",
    ] = "linear"
    """See below."""
    lr_scheduler_kwargs: dict[str, bool | int | float | str | None] | None = None
    """The schedule's own: `{"num_cycles": 2}`."""
    warmup_steps: float = 0
    """Steps; below 1 a ratio of all steps."""
    on_non_finite: Literal["fail", "rollback"] = "fail"
    """When a loss, a gradient or a weight is not finite. `rollback`: back to the newest checkpoint (one is written before the first step, too) with a lower learning rate."""
    non_finite_rollbacks: int = 3
    """After this many in one job, the next one ends it."""
    rollback_learning_rate_factor: float = 0.5
    """What each of them multiplies the learning rates by."""
    label_smoothing_factor: float = 0.0
    """Of the training loss; evaluations report the plain loss."""
    neftune_noise_alpha: float | None = None
    """Noise on the embeddings while training."""
    train_sampling_strategy: Literal["random", "sequential", "group_by_length"] = (
        "random"
    )
    """Order of examples in an epoch."""
    dataloader_drop_last: bool = False
    """Leave out an epoch's last batch when it is smaller."""
    dataloader_num_workers: int | None = None
    """Processes that make batches ahead; 0: the training itself. null: 2 for each process that trains on a GPU, else 0."""
    dataloader_pin_memory: bool = True
    """Without a GPU it does nothing."""
    dataloader_persistent_workers: bool = False
    """Keep those processes from one epoch to the next."""
    dataloader_prefetch_factor: int | None = None
    """Batches that each of them makes ahead; default: 2."""
    padding_free: bool | None = None
    """Compute batches without padding, and heads of masked language models at the masked tokens alone. null: where that is found to give the same numbers; true: or end the job; false: nor are dropout and activations computed faster than transformers does."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] | None = None
    """`auto`: with float32 weights bf16 on a GPU that computes in it, and on a CPU that is measured to be faster in it; on other GPUs (V100, T4) fp16, except for models that are known to exceed its range and with `fsdp` or `deepspeed`; else fp32. A training that is resumed keeps what it began with. `bf16: false` is fp32. Default: `"auto"`."""
    bf16: bool | None = None
    """bfloat16 autocast; weights and optimizer stay fp32. Default: `false`."""
    fp16: bool | None = None
    """float16 autocast with loss scaling; needs a GPU. Default: `false`."""
    use_cpu: bool = False
    """As `resources.gpus: 0`."""
    tf32: bool | None = None
    """TF32 products of float32 on Ampere GPUs or newer; null: torch's default."""
    bf16_full_eval: bool = False
    """The finished model's evaluation and predictions in pure bfloat16."""
    fp16_full_eval: bool = False
    """The same in float16."""
    activation_checkpointing: bool | None = None
    """Compute activations again in the backward pass: less memory, slower."""
    activation_checkpointing_kwargs: (
        dict[str, bool | int | float | str | None] | None
    ) = None
    """Of torch.utils.checkpoint, for example `use_reentrant`."""
    torch_compile: bool = False
    """Compile the model with torch.compile; on a CPU that is slower than without. Later jobs of the kind find what was compiled."""
    torch_compile_backend: TrainingSpecTorchCompileBackend | None = None
    """Implies torch_compile; default: inductor."""
    torch_compile_mode: TrainingSpecTorchCompileMode | None = None
    """Implies torch_compile."""
    compile_if_faster: bool = True
    """On a GPU, without `torch_compile`: before a training of half an hour or more measure on its first batches whether compiled layers are faster, and use them if they are, and if they compute the same. `full_determinism` measures nothing."""
    torch_empty_cache_steps: int | None = None
    """Return the GPU's unused memory after this many steps."""
    seed: int = 42
    """Of new weights, dropout, masks and the order of examples."""
    data_seed: int | None = None
    """Order of examples; default: seed."""
    full_determinism: bool = False
    """Deterministic kernels only; slower, and an error where there is none. On GPUs a training that is repeated or resumed gives the same bits only so, and only on the same GPU model with the same software (docs/gpu.md)."""
    logging_strategy: Literal["no", "steps", "epoch"] = "steps"
    """When the loss is reported."""
    logging_steps: float = 500
    """Steps; below 1 a ratio of all steps."""
    logging_first_step: bool = False
    """Report the first step's loss, too."""
    include_num_input_tokens_seen: Literal["no", "all", "non_padding"] = "no"
    """Log how many tokens were read; `true` is `all`."""
    eval_strategy: Literal["no", "steps", "epoch"] = "no"
    """When to evaluate, in addition to the start and the end."""
    eval_on_start: bool = True
    """Evaluate before the first step, too: what training is compared with. A job without validation data does not."""
    eval_delay: float = 0
    """Steps or epochs, as eval_strategy counts, before the first evaluation."""
    eval_steps: float | None = None
    """Steps, below 1 a ratio of all steps; default: logging_steps."""
    save_strategy: Literal["no", "steps", "epoch", "best"] = "steps"
    """When a checkpoint is written; `best`: after the best evaluation so far, as `load_best_model_at_end` does with every strategy."""
    save_steps: float = 500
    """Steps; below 1 a ratio of all steps."""
    save_total_limit: int | None = None
    """Checkpoints to keep; the best and the newest always stay."""
    resume_from: ResumeFromSpec | None = None
    """`job` and `checkpoint` (`best`, `last` or a step; default: `last`): continue the training of another job, with its optimizer, its schedule and all else. See docs/checkpoints.md."""
    async_save: bool = True
    """Write checkpoints in the background, from a copy in RAM: of what trains, and of the optimizer's state. false: the training waits while they are written."""
    load_best_model_at_end: bool = False
    """The finished model is that of the best evaluation, not the last one. Each new best is saved when it occurs, whatever `save_strategy` and `save_steps` are."""
    metric_for_best_model: str | None = None
    """A metric of the evaluation, `eval_` may be left out; default: loss."""
    greater_is_better: bool | None = None
    """Default: the direction of the metric, as `GET /v1/tasks` lists it. Required for a metric without one, such as `gen_len`."""
    early_stopping_patience: int | None = None
    """Stop after this many evaluations in a row without improvement."""
    early_stopping_threshold: float = 0.0
    """What an improvement must exceed."""


class TranslationSpec(Model):
    """A text → the same in another language, with a sequence-to-sequence model."""

    type: Literal["translation"]
    max_source_length: int = 1024
    """Tokens of a source; longer ones are cut."""
    max_target_length: int = 128
    """Tokens of a training target; longer ones are cut."""
    val_max_target_length: int | None = None
    """The same for evaluation; default: `max_target_length`."""
    generation_max_length: int | None = None
    """Tokens of the longest generated text; default: `val_max_target_length`."""
    num_beams: int | None = None
    """Of beam search; default: that of the model's config."""
    source_prefix: str = ""
    """Put before every source, as T5 expects it."""
    ignore_pad_token_for_loss: bool = True
    """false: the padding of targets counts in the loss."""
    predict_with_generate: bool = True
    """Generate in evaluations and score the texts; false: the loss only."""
    forced_bos_token: str | None = None
    """First token of every generated text: the target language for mBART-50, M2M100 and NLLB."""
    generation: GenerationSpec | None = None
    source_lang: str | None = None
    """Language code of the sources: for tokenizers that have such (mBART, NLLB, …) and for rows like {"translation": {"en": …, "ro": …}}."""
    target_lang: str | None = None
    """Language code of the targets."""


class Trial(Model):
    object: Literal["search.trial"] = "search.trial"
    trial: int
    """Its number in the search, from 0."""
    job_id: str | None
    """Its job; null when the spec refuses the combination of values."""
    origin: Literal["template", "enqueued", "sampled"]
    state: TrialState
    values: dict[str, Any]
    """Path → value, of the fields that vary in this trial."""
    scores: list[float | str] | None
    """One for each objective, once complete."""
    score_step: int | None
    """The step of the evaluation that they are from."""
    reason: str | None
    """Why it was pruned or failed, in a sentence."""
    failure: Failure | None
    reports: list[TrialReport]
    """The last 100, in their order."""
    job_state: JobState | None
    """null when its job was deleted."""
    progress: Progress | None
    created_at: AwareDatetime
    ended_at: AwareDatetime | None


class TrialList(Model):
    object: Literal["list"] = "list"
    data: list[Trial]
    first_id: int | None
    last_id: int | None
    has_more: bool


class Waiting(Model):
    """Why the job does not run now."""

    reason: WaitingReason
    """`backoff`: an attempt failed and is repeated at `until`; `no_worker`: no live worker can run it; `busy_workers`: all that can are busy; `over_quota`: the project has as many GPUs as it may; `insufficient_resources`: the worker's machine lacked what the job needs (disk, memory, open files, a free device), and a worker looks again at `until`, as long as it takes, which counts as no retry; `paused`: until you resume it; `queued`: a worker is free and takes the jobs of the queue in order."""
    message: str
    """The reason in words."""
    since: AwareDatetime
    """When this wait began."""
    until: AwareDatetime | None = None
    """Of `backoff` and `insufficient_resources`: when it is tried again."""
    attempt: int | None = None
    """After a failure: which retry the job waits for; 1 is the first."""
    of: int | None = None
    """After a failure: how many retries it has."""
    failure: Failure | None = None
    """Why the attempt before this wait failed."""


class WebhookChanges(Model):
    url: str | None = None
    """null: it stays."""
    events: list[WebhookChangesEventsItem] | None = None
    """null: they stay."""
    description: str | None = None
    """null: none."""
    enabled: bool | None = None
    """true: enable one that was disabled; its deliveries of that time can be replayed. null: it stays."""


class BestTrials(Model):
    """The best trial, or with several objectives those that no other one beats in all of them."""

    object: Literal["list"] = "list"
    objectives: list[ObjectiveOfSearch]
    data: list[Trial]


class CausalLMSpec(Model):
    """Predict each token from those before it."""

    type: Literal["causal-lm"]
    text_column: str | None = None
    """Your column with the text; the same as `dataset.columns.text`."""
    block_size: int | None = None
    """Tokens of a training example; default: the smaller of 1024 and the model's limit."""
    separate_documents: bool = False
    """No attention across the border of two rows in a block; positions restart at 0."""
    packing: Literal["bfd", "off"] = "off"
    """bfd: whole rows fill blocks of `block_size` tokens, by best-fit decreasing. None sees another, and no token is lost: longer rows are continued in further blocks."""
    keep_linebreaks: bool = True
    """In plain text files a line's end is part of the text."""
    max_new_tokens: int | None = None
    """`mode: predict`: tokens that are generated for a row, at most. Default: the smaller of 64 and half of what the model takes."""
    num_beams: int | None = None
    """`mode: predict`: of beam search; default: that of the model's config."""
    generation: GenerationSpec | None = None
    """`mode: predict`: how texts are generated."""


class ChatSpec(Model):
    """Teach a model the assistant's part of conversations."""

    type: Literal["chat"]
    max_length: int | None = None
    """Tokens of a conversation; longer ones are cut at their end. Default: what nearly all training rows need, at most the model's limit; the job says what that is."""
    chat_template: str | None = None
    """The name of a template of ours (`chatml`, …), or the text of a Jinja template. Default: the model's own."""
    train_on: Literal["assistant", "last", "all", "completion"] = "assistant"
    """assistant: every turn of the assistant whose `weight` is not 0; last: the last of them; all: each token; completion: what follows the prompt."""
    packing: Literal["bfd", "off"] = "off"
    """bfd: several conversations in one example of `max_length` tokens, by best-fit decreasing. None of them sees another, and none is cut for it."""
    generate: GenerateSpec | None = None
    """Generate answers in evaluations. With `mode: predict`: how answers are generated."""


class FSDPSpec(Model):
    """Each process holds a part of every weight, and gathers a block's when it computes it."""

    type: Literal["fsdp"] = "fsdp"
    """Fully sharded data parallel."""
    timeout: int = 1800
    """Seconds that a process waits for the others."""
    reshard_after_forward: bool = True
    """Free a block's gathered weights after its forward pass and gather them again for the backward pass; false takes more memory and sends less."""
    auto_wrap_policy: Literal[
        "transformer_based_wrap", "size_based_wrap", "no_wrap"
    ] = "transformer_based_wrap"
    """What is gathered at once: each block, each module of `min_num_params` weights, or the whole model."""
    transformer_layer_cls_to_wrap: list[str] | None = None
    """Classes of the blocks; default: what the model's type names."""
    min_num_params: int | None = None
    """With `size_based_wrap`; default: 100,000,000."""
    cpu_offload: bool = False
    """Keep weights, gradients and optimizer state on the CPU between uses."""
    mixed_precision_policy: MixedPrecisionPolicySpec | None = None
    """`{param_dtype: …, reduce_dtype: …}`, `float32` or `bfloat16`; default with `training.bf16` on GPUs: `bfloat16` and `float32`."""
    sync_each_batch: bool = False
    """Sum gradients up over the processes after each part of an accumulated batch: less memory, more is sent."""


class JobSummary(Model):
    """A line of the list."""

    id: str
    project: str = "default"
    """Id of the project that owns it."""
    name: str | None
    task: str
    state: JobState
    stage: Stage
    phase: Phase | None
    progress: Progress | None
    attempt: int
    """Of the present stage; 0 before the first."""
    priority: int
    last_metrics: dict[str, Any]
    """The latest metrics."""
    best_metric: BestMetric | None = None
    """Once it is trained, if it has a `metric_for_best_model`."""
    failure: Failure | None
    """Why it ended, and what to do about it."""
    waiting: Waiting | None
    """Why it waits; null while it runs or has ended."""
    metadata: dict[str, str]
    search_id: str | None = None
    """The search that made it."""
    trial: int | None = None
    """Its number in the search; null for the job that trains the search's best values again."""
    mlflow_url: str | None
    """The run's page."""
    created_at: AwareDatetime
    updated_at: AwareDatetime
    ended_at: AwareDatetime | None


class LoraSpec(Model):
    """Low-rank changes added to the weights; also rsLoRA, DoRA and LoRA on quantised weights."""

    method: Literal["lora"] = "lora"
    target_modules: list[str] | str | None = None
    """Ends of module names, or one regular expression for whole names, or `all-linear`; default: what peft names for the model's type."""
    exclude_modules: list[str] | str | None = None
    """Not these, although `target_modules` names them."""
    modules_to_save: list[str] | None = None
    """Ends of names of modules that are trained whole. New heads always are."""
    r: int = 8
    """Rank."""
    lora_alpha: int = 8
    """The change is scaled by lora_alpha / r."""
    lora_dropout: float = 0.0
    bias: Literal["none", "all", "lora_only"] = "none"
    """Biases to train."""
    use_rslora: bool = False
    """Scale by lora_alpha / √r instead."""
    use_dora: bool = False
    """Train the magnitude of each weight separately."""
    lora_bias: bool = False
    """The low-rank change has a bias as well."""
    init_lora_weights: LoraSpecInitLoraWeights | Literal[True] = True
    """How the change begins; each way it is zero."""
    layers_to_transform: list[int] | None = None
    """Only in the layers of these numbers."""
    rank_pattern: dict[str, int] | None = None
    """End of a module's name → its own r."""
    alpha_pattern: dict[str, int] | None = None
    """The same for lora_alpha."""
    quantization: QuantizationSpec | None = None
    """Load the base weights in 8 or 4 bits."""
    merge: bool = False
    """Add the change to the base weights before the model is saved. Tied embeddings have weights of their own then, if the adapter changes one of them."""


class Preview(Model):
    """What a job with this spec would make of the first rows of its data."""

    object: Literal["preview"] = "preview"
    id: str
    state: PreviewState
    rows: int
    """As asked for."""
    shown: int
    created_at: AwareDatetime
    ended_at: AwareDatetime | None
    expires_at: AwareDatetime
    """When it is removed."""
    waiting: str | None
    """Why no worker has begun, where something is known."""
    failure: Failure | None
    """How a job would fail with these rows, or why there is no result."""
    result: PreviewFindings | None
    """null until the preview has ended. With a failure: what was found before it."""


class ResourcesSpec(Model):
    gpus: int | None = None
    """0: train on the CPU; N: wait for a worker that has this many GPUs; null: one GPU where the worker has some."""
    num_processes: int | None = None
    """Processes of one training, one for each GPU; on a CPU 1 unless given."""
    strategy: DDPSpec | FSDPSpec | DeepSpeedSpec | ResourcesSpecStrategy | None = None
    """How several processes share the work; `ddp` unless given."""


class SearchList(Model):
    object: Literal["list"] = "list"
    data: list[SearchSummary]
    first_id: str | None
    last_id: str | None
    has_more: bool


class JobList(Model):
    """Newest first. The next page: `after` = `last_id`, while `has_more`."""

    data: list[JobSummary]
    first_id: str | None
    last_id: str | None
    has_more: bool


class JobSpec(Model):
    name: str | None = None
    mode: Literal["train", "evaluate", "predict"] = "train"
    """`train`: train a model; `evaluate`: score one as it is, on `dataset.validation` and `dataset.test`; `predict`: write its predictions for `dataset.test`, which needs no labels."""
    task: (
        QuestionAnsweringSpec
        | CausalLMSpec
        | MaskedLMSpec
        | TextClassificationSpec
        | TokenClassificationSpec
        | SummarizationSpec
        | TranslationSpec
        | ChatSpec
        | PreferenceSpec
        | RewardSpec
        | JobSpecTask
    )
    model: ModelSpec
    dataset: HubDataset | UploadDataset | PathDataset
    training: TrainingSpec | None = None
    peft: LoraSpec | IA3Spec | PromptTuningSpec | PrefixTuningSpec | None = None
    """Train an adapter; left out: all weights."""
    resources: ResourcesSpec | None = None
    tracking: TrackingSpec | None = None
    hub: HubSpec | None = None
    secrets: SecretsSpec | None = None
    """Secrets of the project that the job is given, by name."""
    webhooks: list[JobWebhook] | None = None
    """Receivers of this job's events, besides the project's webhooks."""
    priority: int = 5
    """0 is first."""
    timeout_seconds: int | None = None
    """Running time of all stages together."""
    stage_timeout_seconds: StageTimeouts | None = None
    max_retries: int = 3
    """Retries after failures that a retry can fix."""
    metadata: (
        dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")], str]
        | None
    ) = None


class SearchSpec(Model):
    """A search of hyper-parameters: a template, what varies in it, and what is looked for."""

    name: str | None = None
    """Its trials are named after it; default: the template's name."""
    job: JobSpec
    """The template: a job spec as POST /v1/jobs takes it. Its `hub` section is for the best model only."""
    space: (
        dict[
            Annotated[
                str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
            ],
            Dimension,
        ]
        | None
    ) = None
    """Fields of the template by path, and their values. Default: the task's."""
    objective: list[Objective] | Objective | str | None = None
    """One metric, or several. Default: the template's `metric_for_best_model`, or the task's."""
    sampler: (
        TpeSampler
        | RandomSampler
        | GridSampler
        | QmcSampler
        | GpSampler
        | NsgaIISampler
        | None
    ) = None
    """How the values of the next trial are chosen. A name alone has the defaults."""
    pruner: (
        NoPruner | MedianPruner | AshaPruner | HyperbandPruner | PatiencePruner | None
    ) = None
    """Which trials stop early. A name alone has the defaults."""
    max_trials: int = 20
    """Trials in all, those to begin with included."""
    max_parallel: int = 1
    """Trials that may run at once, as far as workers and quotas allow."""
    timeout_seconds: int | None = None
    """No trial begins later than this; those that run go on to their end."""
    stop_after_trials_without_gain: int | None = None
    """No trial begins after this many finished ones in a row that were not better than the best before them."""
    template_trial: bool = True
    """Whether trial 0 has the template's own values."""
    enqueue: (
        list[
            dict[
                Annotated[
                    str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
                ],
                Any,
            ]
        ]
        | None
    ) = None
    """Trials to begin with, by path; the sampler chooses the values left out."""
    on_failure: Literal["skip", "stop"] = "skip"
    """What a failed trial means: the search continues without it, or ends."""
    best: KeepBest | PublishBest | RefitBest | None = None
    """What becomes of the best trial."""


class SearchValidation(Model):
    """What POST /v1/searches would do with the same body."""

    valid: bool
    spec: SearchSpec | None
    """If valid: the spec with the defaults of its task."""
    errors: list[Fault]
    """If not valid: every fault."""
    warnings: list[SpecWarning] | None = None
    """What may not be as intended."""


class Validation(Model):
    """What POST /v1/jobs would do with the same body."""

    valid: bool
    spec: JobSpec | None
    """If valid: the spec with all defaults filled in."""
    errors: list[Fault]
    """If not valid: every fault."""
    ignored: list[IgnoredOption] | None = None
    """Options of `training` that were given at their defaults and do nothing here, as in a pasted `TrainingArguments.to_dict()`."""
    warnings: list[SpecWarning] | None = None
    """What is valid but will probably not do what is expected. Each is also a `notice` event of the new job."""


class Job(JobSummary):
    """One job in full."""

    queue_position: int | None
    """1: next in its queue; null: not waiting."""
    waits_until: AwareDatetime | None
    """Queued for a retry, which starts at this time at the earliest."""
    worker: str | None
    """The worker that runs it now."""
    actions: list[Action]
    """Actions that are possible in its current state."""
    cloned_from: str | None
    """The job that it was cloned from."""
    follow_up: dict[str, Any] | None
    """The action requested after the job had ended, `promote` or `publish`, until it has succeeded."""
    base_job: str | None
    """The job whose training it continues (`training.resume_from`), or whose model it started from (`model.job`)."""
    derived_jobs: list[str]
    """Jobs that started from its model, the oldest first; at most 100."""
    workspace_pruned_at: AwareDatetime | None
    """When its checkpoints and artifacts were removed to make room; a retry recreates them."""
    stages: list[StageTimes]
    result: JobResult | None
    hub_url: str | None
    spec: JobSpec
    """The spec with all defaults filled in."""


class Search(SearchSummary):
    """The whole page."""

    objectives: list[ObjectiveOfSearch]
    outcome: SearchOutcome | None
    """With `best: publish` or `refit`, once every trial has ended."""
    spec: SearchSpec
    """As it was submitted, with the defaults of the task for what was left out."""


class SubmittedJob(Job):
    """A new job's page, the options that were ignored, and warnings."""

    ignored: list[IgnoredOption] | None = None
    """Options of `training` that were given at their defaults and do nothing here, as in a pasted `TrainingArguments.to_dict()`."""
    warnings: list[SpecWarning] | None = None
    """What is valid but will probably not do what is expected. Each is also a `notice` event of the new job."""


class SubmittedSearch(Search):
    warnings: list[SpecWarning]
    """What may not be as intended."""
