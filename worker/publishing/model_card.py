"""Writes the README.md of a finished model: metadata for the Hub, text for people."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from huggingface_hub import EvalResult, ModelCardData

from service.contract.spec.dataset import HubDataset, UploadDataset
from service.contract.spec.spec import JobSpec
from service.contract.stage.stages import BaseCard, PrepareResult, StageRequest, TrainResult
from service.contract.tasks.tasks import TASKS
from service.system import escaping
from worker.publishing import card_metrics, usage_code
from worker.publishing.task_texts import TASK_TEXTS

_DISTRIBUTION: Final = "finetune-service"
_LONGEST: Final = 500
"""Characters of an option's value."""


def render(request: StageRequest, prepared: PrepareResult, trained: TrainResult) -> str:
    """The card as Markdown, with YAML metadata and a model-index at its top."""
    spec = request.spec
    sections = (
        _introduction(spec, prepared),
        _data(spec, prepared),
        card_metrics.section(request, trained),
        _usage(request, prepared),
        _limits(spec),
        _procedure(spec, trained),
    )
    data = _metadata(request, prepared, trained)
    front_matter = escaping.yaml_document(data.to_dict())
    return f"---\n{front_matter}\n---\n\n" + "\n\n".join(sections) + "\n"


# ---- metadata ---------------------------------------------------------------------------------


def _metadata(
    request: StageRequest, prepared: PrepareResult, trained: TrainResult
) -> ModelCardData:
    spec = request.spec
    found = _eval_results(spec, prepared, trained.metrics)
    base = prepared.base_card or BaseCard()
    own = [_DISTRIBUTION, spec.task.type, *([spec.peft.method] if spec.peft else [])]
    return ModelCardData(
        language=base.language or None,
        **_license(spec, base),
        library_name="peft" if _is_adapter(spec) else "transformers",
        pipeline_tag=_hub_task(spec),
        base_model=_hub_base(spec),
        base_model_relation="adapter" if _is_adapter(spec) and _hub_base(spec) else None,
        datasets=[spec.dataset.name] if isinstance(spec.dataset, HubDataset) else None,
        metrics=card_metrics.types(spec, trained.metrics) or None,
        tags=[*own, *(tag for tag in base.tags if tag not in own)],
        model_name=_title(spec) if found else None,
        eval_results=found or None,
    )


def _license(spec: JobSpec, base: BaseCard) -> dict[str, Any]:
    """The license of the job, else of the base model."""
    if spec.hub is not None and spec.hub.license is not None:
        return {"license": spec.hub.license}
    named = {
        "license": base.license,
        "license_name": base.license_name,
        "license_link": base.license_link,
    }
    return {name: value for name, value in named.items() if value is not None}


def _is_adapter(spec: JobSpec) -> bool:
    return spec.peft is not None and not spec.peft.merges


def _hub_task(spec: JobSpec) -> str:
    return TASK_TEXTS[spec.task.variant()].pipeline or spec.task.type


def _eval_results(
    spec: JobSpec, prepared: PrepareResult, metrics: Mapping[str, float]
) -> list[EvalResult]:
    sets = card_metrics.sets(spec)
    validated = [
        (sets[card_metrics.set_of(spec, name)], card_metrics.measured(spec, name), value)
        for name, value in card_metrics.reported(spec, metrics).items()
    ]
    split = card_metrics.test_split(spec)
    tested = [(split, *item) for item in card_metrics.tested(spec, metrics).items()]
    return [_eval_result(spec, prepared, *result) for result in [*validated, *tested]]


def _eval_result(
    spec: JobSpec, prepared: PrepareResult, split: str, metric: str, value: float
) -> EvalResult:
    dataset, hub = spec.dataset, isinstance(spec.dataset, HubDataset)
    return EvalResult(
        task_type=_hub_task(spec),
        task_name=TASKS[spec.task.type].title,
        dataset_type=dataset.name if isinstance(dataset, HubDataset) else "custom",
        dataset_name=_dataset_name(spec),
        dataset_config=dataset.config if isinstance(dataset, HubDataset) else None,
        dataset_split=split,
        dataset_revision=prepared.dataset_revision if hub else None,
        metric_type=metric,
        metric_value=value,
    )


# ---- text ---------------------------------------------------------------------------------------


def _title(spec: JobSpec) -> str:
    if spec.hub is not None:
        return spec.hub.model_id.split("/")[-1]
    return f"{_base_name(spec)}-{spec.task.type}"


def _hub_base(spec: JobSpec) -> str | None:
    """The base model's id on the Hub; None if it is on disk, or if there is none."""
    name = spec.model.name_or_path
    return None if Path(name or "").is_absolute() else name


def _base_name(spec: JobSpec) -> str:
    """The last part only: a card must not reveal the worker's paths."""
    if spec.model.config is not None:
        return spec.model.config.model_type
    return (spec.model.name_or_path or "").rstrip("/").split("/")[-1]


def _dataset_name(spec: JobSpec) -> str:
    if isinstance(spec.dataset, HubDataset):
        return spec.dataset.name
    if isinstance(spec.dataset, UploadDataset):
        return "uploaded files"
    return ", ".join(Path(path).name for path in spec.dataset.train or ())


def _data_words(spec: JobSpec) -> str:
    if isinstance(spec.dataset, UploadDataset):
        return _dataset_name(spec)
    return escaping.markdown_code(_dataset_name(spec))


def _introduction(spec: JobSpec, prepared: PrepareResult) -> str:
    base = _hub_base(spec)
    link = escaping.markdown_code(base or _base_name(spec))
    if base:
        link = f"[{link}](https://huggingface.co/{quote(base)})"
    revision = ""
    if prepared.model_revision:
        revision = f" at revision {escaping.markdown_code(prepared.model_revision)}"
    how = "fine-tuned" if spec.model.config is None else "trained from scratch"
    return (
        f"# {escaping.markdown(_title(spec))}\n\n"
        f"{link}{revision}, {how} for {TASKS[spec.task.type].title.lower()} "
        f"on {_data_words(spec)}.{_adaptation(spec)}{_lineage(prepared)}"
    )


def _lineage(prepared: PrepareResult) -> str:
    base, source = prepared.base_job, prepared.resume_source
    if source is not None:
        return f" The training continued that of job `{source.job}` from step {source.step} on."
    if base is None:
        return ""
    step = "" if base.step is None else f", at step {base.step},"
    return f" Training began with the model that job `{base.job}`{step} had made of it."


def _adaptation(spec: JobSpec) -> str:
    if spec.peft is None:
        return ""
    if spec.peft.merges:
        return f" It was trained by `{spec.peft.method}`, and the change is part of its weights."
    return f" This is an adapter (`{spec.peft.method}`): it works together with that model."


def _data(spec: JobSpec, prepared: PrepareResult) -> str:
    lines = [f"- Data: {_data_words(spec)}"]
    if isinstance(spec.dataset, HubDataset) and spec.dataset.config:
        lines.append(f"- Config: {escaping.markdown_code(spec.dataset.config)}")
    if prepared.dataset_revision:
        lines.append(f"- Revision: {escaping.markdown_code(prepared.dataset_revision)}")
    fingerprint = escaping.markdown_code(prepared.data_fingerprint)
    lines.append(f"- Fingerprint (rows and tokenisation): {fingerprint}")
    for split, counts in prepared.splits.items():
        amounts = ", ".join(f"{count:,} {what}" for what, count in counts.items())
        lines.append("- " + escaping.markdown(f"{split.capitalize()}: {amounts}"))
    return "## Training data\n\n" + "\n".join(lines)


def _usage(request: StageRequest, prepared: PrepareResult) -> str:
    spec = request.spec
    target = request.hub_target
    name = target.model_id if target else "path/to/this/folder"
    if _is_adapter(spec):
        base = _hub_base(spec) or f"path/to/{_base_name(spec)}"
        code = usage_code.of_adapter(spec, name, base, prepared.model_revision)
    else:
        code = usage_code.of_model(spec, name)
    return f"## How to use it\n\n{escaping.markdown_block(code, 'python')}"


def _limits(spec: JobSpec) -> str:
    text = TASK_TEXTS[spec.task.variant()].limits
    shared = "It inherits the biases and the licence terms of its base model and its data."
    return f"## Limits\n\n{text} {shared}"


def _procedure(spec: JobSpec, trained: TrainResult) -> str:
    used = trained.precision  # what `auto` became
    precision = {"precision": used, "bf16": used == "bf16", "fp16": used == "fp16"}
    sections = [spec.task.model_dump(), spec.training.model_dump() | precision]
    if spec.peft is not None:
        adapter = spec.peft.model_dump(exclude_none=True)
        sections.append({f"peft.{name}": value for name, value in adapter.items()})
    rows = [
        f"| {escaping.markdown_cell(name)} | {_option(value)} |"
        for values in sections
        for name, value in values.items()
        if name != "type" and value is not None
    ]
    libraries = ["transformers", *(["peft"] if spec.peft else []), "torch", "datasets"]
    return (
        f"## Training procedure\n\n{trained.steps:,} optimizer steps, "
        f"{card_metrics.number(trained.epochs)} epochs.{_chosen(trained)}\n\n"
        "| option | value |\n|---|---|\n" + "\n".join(rows) + "\n\n"
        f"Weights (sha256): {escaping.markdown_code(str(trained.weights_sha256))}\n\n"
        "Made with "
        + ", ".join(f"{name} {version(name)}" for name in (_DISTRIBUTION, *libraries))
        + "."
    )


def _option(value: Any) -> str:
    text = str(value)
    return escaping.markdown(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


def _chosen(trained: TrainResult) -> str:
    """Which step's weights these are, if there was a choice."""
    if trained.best_step is None or trained.best_metric is None or trained.model_step is None:
        return ""
    name = escaping.markdown_code(trained.metric_for_best_model or "")
    metric = f"{name}: {card_metrics.number(trained.best_metric)}"
    if trained.model_step == trained.best_step:
        return f" The weights are those of step {trained.best_step} ({metric})."
    return (
        " The weights are those of the last step; the best evaluation was that of step "
        f"{trained.best_step} ({metric})."
    )
