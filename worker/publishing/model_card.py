"""Writes the README.md of a finished model: metadata for the Hub, text for people."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from huggingface_hub import EvalResult, ModelCardData

from service.contract.dataset import HubDataset, UploadDataset
from service.contract.peft import BASE_CONFIG_FOLDER
from service.contract.spec import JobSpec
from service.contract.stages import BaseCard, PrepareResult, StageRequest, TrainResult
from service.contract.tasks import TASKS
from worker.publishing import adapter_snippet, card_metrics

_DISTRIBUTION: Final = "finetune-service"


@dataclass(frozen=True)
class _TaskText:
    """A card's text about a task. `usage` is Python code with `{model}` for the name."""

    usage: str
    limits: str
    pipeline: str | None = None
    """The Hub's name for the task, if it differs from ours."""


_GENERATE: Final = """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{{model}}")
model = AutoModelForSeq2SeqLM.from_pretrained("{{model}}").eval()

text = "{{source_prefix}}{source}"
encoded = tokenizer(
    text, truncation=True, max_length={{max_source_length}}, return_tensors="pt"
)
tokens = model.generate(
    input_ids=encoded["input_ids"],
    attention_mask=encoded["attention_mask"],
    max_length={{max_target_length}},
)
print(tokenizer.batch_decode(tokens, skip_special_tokens=True)[0])
"""

_TASK_TEXTS: Final[dict[str, _TaskText]] = {
    "question-answering": _TaskText(
        usage="""\
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{model}")
model = AutoModelForQuestionAnswering.from_pretrained("{model}").eval()

question = "Who wrote the report?"
context = "The report was written by Ada in 1843."
encoded = tokenizer(
    question,
    context,
    truncation="only_second",
    max_length={max_seq_length},
    return_offsets_mapping=True,
    return_tensors="pt",
)
offsets = encoded.pop("offset_mapping")[0]
with torch.no_grad():
    output = model(**encoded)

# Answers lie in the context: of all spans there, the one with the highest sum of scores.
in_context = torch.tensor([part == 1 for part in encoded.sequence_ids(0)])
outside = ~(in_context[:, None] & in_context[None, :])
scores = output.start_logits[0][:, None] + output.end_logits[0][None, :]
scores = scores.masked_fill(outside, float("-inf"))
spans = torch.triu(torch.ones_like(scores)).tril({max_answer_length} - 1) == 0
best = int(scores.masked_fill(spans, float("-inf")).argmax())
start, end = divmod(best, scores.shape[1])
answer = context[int(offsets[start][0]) : int(offsets[end][1])]
print(answer)
""",
        limits=(
            "It marks a span of the given text as the answer; it knows nothing beyond that text "
            "and does not reason over it. Passages longer than its window must be cut into "
            "overlapping windows, as was done in training."
        ),
    ),
    "text-classification": _TaskText(
        usage="""\
from transformers import pipeline

classify = pipeline("text-classification", model="{model}", top_k=None)
print(classify("The report was written by Ada in 1843."))
# Of a pair: classify({"text": "The first text.", "text_pair": "The second text."})
""",
        limits=(
            "It knows only the labels it was trained with and answers with one of them for any "
            "text. Texts longer than it was trained on are cut."
        ),
    ),
    "token-classification": _TaskText(
        usage="""\
from transformers import pipeline

tag = pipeline("token-classification", model="{model}", aggregation_strategy="first")
print(tag("The report was written by Ada in 1843."))
""",
        limits=(
            "It knows only the tags it was trained with. It was trained on one tag a word, for "
            "words split as in its training data; of words split otherwise it may know less."
        ),
    ),
    "causal-lm": _TaskText(
        usage="""\
from transformers import pipeline

write = pipeline("text-generation", model="{model}")
print(write("The report was written by", max_new_tokens=40)[0]["generated_text"])
""",
        limits=(
            "It continues a text as its training data would; what it writes may be wrong, however "
            "fluent it reads."
        ),
        pipeline="text-generation",
    ),
    "masked-lm": _TaskText(
        usage="""\
from transformers import pipeline

fill = pipeline("fill-mask", model="{model}")
print(fill(f"The report was {fill.tokenizer.mask_token} by Ada in 1843."))
""",
        limits=(
            "It fills single gaps in a text. For anything else, such as classifying texts, it has "
            "to be trained further."
        ),
        pipeline="fill-mask",
    ),
    "question-answering/beam-search": _TaskText(
        usage="""\
import torch
from transformers import AutoTokenizer, XLNetForQuestionAnswering

tokenizer = AutoTokenizer.from_pretrained("{model}")
model = XLNetForQuestionAnswering.from_pretrained("{model}").eval()

question = "Who wrote the report?"
context = "The report was written by Ada in 1843."
encoded = tokenizer(
    context,
    question,
    truncation="only_first",
    max_length={max_seq_length},
    return_offsets_mapping=True,
    return_token_type_ids=True,
    return_tensors="pt",
)
offsets = encoded.pop("offset_mapping")[0]
in_context = torch.tensor([part == 0 for part in encoded.sequence_ids(0)])
null = encoded["input_ids"][0].tolist().index(tokenizer.cls_token_id)
outside = (~in_context).float()
outside[null] = 0.0
with torch.no_grad():
    output = model(**encoded, p_mask=outside[None], cls_index=torch.tensor([null]))

# Some ends for each of the best starts; of all spans in the context, the likeliest.
starts, start_scores = output.start_top_index[0], output.start_top_log_probs[0]
ends = output.end_top_index[0].reshape(-1, len(starts))
end_scores = output.end_top_log_probs[0].reshape(-1, len(starts))
spans = [
    (float(start_scores[s] + end_scores[e, s]), int(starts[s]), int(ends[e, s]))
    for s in range(len(starts))
    for e in range(len(ends))
    if in_context[starts[s]] and 0 <= ends[e, s] - starts[s] < {max_answer_length}
]
_score, start, end = max(spans)
answer = context[int(offsets[start][0]) : int(offsets[end][1])]
print(answer)
""",
        limits=(
            "It marks a span of the given text as the answer; it knows nothing beyond that text "
            "and does not reason over it. Passages longer than its window must be cut into "
            "overlapping windows, as was done in training."
        ),
    ),
    "summarization": _TaskText(
        usage=_GENERATE.format(source="A long text. It says many things, and some of them twice."),
        limits=(
            "It writes what summaries looked like in its training data; what it writes may not "
            "be in the text. Longer texts than it was trained on are cut."
        ),
    ),
    "translation": _TaskText(
        usage=_GENERATE.format(source="The report was written by Ada in 1843."),
        limits=(
            "It translates between the languages, and the kinds of text, that it was trained on; "
            "fluent output may still be wrong. Longer texts than it was trained on are cut."
        ),
    ),
}


def write(path: Path, request: StageRequest, prepared: PrepareResult, trained: TrainResult) -> None:
    path.write_text(render(request, prepared, trained), encoding="utf-8")


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
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(sections) + "\n"


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
    return _TASK_TEXTS[spec.task.variant()].pipeline or spec.task.type


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


def _introduction(spec: JobSpec, prepared: PrepareResult) -> str:
    base = _hub_base(spec)
    link = f"[`{base}`](https://huggingface.co/{base})" if base else f"`{_base_name(spec)}`"
    revision = f" at revision `{prepared.model_revision}`" if prepared.model_revision else ""
    how = "fine-tuned" if spec.model.config is None else "trained from scratch"
    return (
        f"# {_title(spec)}\n\n"
        f"{link}{revision}, {how} for {TASKS[spec.task.type].title.lower()} "
        f"on {_dataset_name(spec)}.{_adaptation(spec)}{_lineage(prepared)}"
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
    lines = [f"- Data: {_dataset_name(spec)}"]
    if isinstance(spec.dataset, HubDataset) and spec.dataset.config:
        lines.append(f"- Config: `{spec.dataset.config}`")
    if prepared.dataset_revision:
        lines.append(f"- Revision: `{prepared.dataset_revision}`")
    lines.append(f"- Fingerprint (rows and tokenisation): `{prepared.data_fingerprint}`")
    for split, counts in prepared.splits.items():
        amounts = ", ".join(f"{count:,} {what}" for what, count in counts.items())
        lines.append(f"- {split.capitalize()}: {amounts}")
    return "## Training data\n\n" + "\n".join(lines)


def _usage(request: StageRequest, prepared: PrepareResult) -> str:
    spec = request.spec
    target = request.hub_target
    name = target.model_id if target else "path/to/this/folder"
    code = _TASK_TEXTS[spec.task.variant()].usage
    if _is_adapter(spec):
        base = _hub_base(spec) or f"path/to/{_base_name(spec)}"
        code = adapter_snippet.of_adapter(code, base, prepared.model_revision, BASE_CONFIG_FOLDER)
    for key, value in {"model": name, **spec.task.model_dump()}.items():
        code = code.replace(f"{{{key}}}", str(value))
    return f"## How to use it\n\n```python\n{code}```"


def _limits(spec: JobSpec) -> str:
    text = _TASK_TEXTS[spec.task.variant()].limits
    shared = "It inherits the biases and the licence terms of its base model and its data."
    return f"## Limits\n\n{text} {shared}"


def _procedure(spec: JobSpec, trained: TrainResult) -> str:
    sections = [spec.task.model_dump(), spec.training.model_dump() | _precision(trained)]
    if spec.peft is not None:
        adapter = spec.peft.model_dump(exclude_none=True)
        sections.append({f"peft.{name}": value for name, value in adapter.items()})
    rows = [
        f"| `{name}` | {value} |"
        for values in sections
        for name, value in values.items()
        if name != "type" and value is not None
    ]
    libraries = ["transformers", *(["peft"] if spec.peft else []), "torch", "datasets"]
    return (
        f"## Training procedure\n\n{trained.steps:,} optimizer steps, "
        f"{card_metrics.number(trained.epochs)} epochs.{_chosen(trained)}\n\n"
        "| option | value |\n|---|---|\n" + "\n".join(rows) + "\n\n"
        f"Weights (sha256): `{trained.weights_sha256}`\n\n"
        "Made with "
        + ", ".join(f"{name} {version(name)}" for name in (_DISTRIBUTION, *libraries))
        + "."
    )


def _precision(trained: TrainResult) -> dict[str, object]:
    """The precision that `auto` has resolved to."""
    used = trained.precision
    if used is None:
        return {}
    return {"precision": used, "bf16": used == "bf16", "fp16": used == "fp16"}


def _chosen(trained: TrainResult) -> str:
    """Which step's weights these are, if there was a choice."""
    if trained.best_step is None or trained.best_metric is None or trained.model_step is None:
        return ""
    metric = f"`{trained.metric_for_best_model}`: {card_metrics.number(trained.best_metric)}"
    if trained.model_step == trained.best_step:
        return f" The weights are those of step {trained.best_step} ({metric})."
    return (
        " The weights are those of the last step; the best evaluation was that of step "
        f"{trained.best_step} ({metric})."
    )
