"""Every suggestion that a fault of a spec can make, followed: what was wrong is right then, and
nothing else has become wrong.

The tables are walked, not listed, so that an entry of tomorrow is followed, too.
"""

import copy
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from service.api.faults.collect import collect
from service.api.faults.walk import choices, kinds, models_in
from service.api.schemas.problems import Fault
from service.contract.spec.spec import JobSpec
from service.contract.tasks.tasks import TASKS
from service.contract.training_arguments.aliases import ALIASES
from service.contract.training_arguments.common_names import COMMON_NAMES, COMMON_TASKS
from service.contract.training_arguments.script_options import PLACES

Spec = dict[str, Any]
ROOT_FIELDS: Final = JobSpec.model_fields
LONGEST_SKIPPED: Final = 4
"""Of shorter names nothing is near."""
WRITTEN: Final[Spec] = {
    # What people write there in the tools that have these names.
    **dict.fromkeys(("adapter", "finetuning_type"), "lora"),
    **dict.fromkeys(("base_model", "model_name", "tokenizer"), "org/name"),
    **dict.fromkeys(("hub_repo", "repo_id"), "me/mine"),
    **dict.fromkeys(("load_in_4bit", "load_in_8bit", "early_stopping"), True),
    **dict.fromkeys(("dropout", "val_set_size", "warmup", "wd", "clip_grad", "grad_clip"), 0.1),
    **dict.fromkeys(("gradient_clipping", "beta1", "beta2"), 0.9),
    **dict.fromkeys(("epochs", "max_epochs", "n_epochs", "num_epochs", "patience"), 3),
    **dict.fromkeys(("batch_size", "bs", "eval_bs", "micro_batch_size", "gpus", "n_gpus"), 2),
    **dict.fromkeys(("grad_accum", "grad_accum_steps", "gradient_accumulation"), 4),
    **dict.fromkeys(("alpha", "rank", "lora_dim", "lora_r", "lora_rank", "steps", "num_steps"), 16),
    **dict.fromkeys(("cutoff_len", "max_len", "seq_len", "seq_length", "sequence_len"), 512),
    **dict.fromkeys(("lora_target", "lora_target_modules"), None),
    **dict.fromkeys(("lr_scheduler", "scheduler"), "cosine"),
    "lr": 2e-5,
    "metric": "loss",
    "optimizer": "adamw_torch",
}
SPLITS: Final = re.compile("source|data_files|(train|training|dev|eval|test|val|validation)_.*")
"""Names of a split, a file or a source, whose values depend on the kind of the data set."""
VALUES: Final[Spec] = {
    "generation_max_length": 20,
    "generation_num_beams": 2,
}
COMPANIONS: Final[Spec] = {
    name: {"training": {"eval_strategy": "epoch"}} for name in ("early_stopping", "patience")
}
"""What rules need besides, if an option is given."""


def task_of(name: str) -> Spec:
    """With what its rules need."""
    needed = {"translation": {"source_lang": "de", "target_lang": "en"}}.get(name, {})
    return {"type": name, **needed}


def base(**sections: Any) -> Spec:
    return {
        "task": task_of("text-classification"),
        "model": {"name_or_path": "org/model"},
        "dataset": {"source": "hub", "name": "org/data"},
        **sections,
    }


def value_of(name: str, field: FieldInfo) -> Any:
    if name in VALUES:
        return VALUES[name]
    if field.examples:
        return field.examples[0]
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return default.model_dump(mode="json", exclude_defaults=True)
    return None if field.is_required() else default


# ---- every section of a spec ------------------------------------------------------------------


Section = tuple[str, type[BaseModel], Spec]
"""Its path, the model of one of its kinds, and a spec in which it is of this kind."""


@cache
def sections() -> list[Section]:
    return [("", JobSpec, base()), *_inside("", JobSpec, base())]


def _inside(path: str, model: type[BaseModel], spec: Spec) -> Iterator[Section]:
    for name, field in model.model_fields.items():
        if "list[" in str(field.annotation):
            continue
        for kind in models_in(field.annotation):
            tag = str(field.discriminator)
            for chosen in kinds(kind, tag) or (None,):
                inner = f"{path}.{name}".strip(".")
                made = copy.deepcopy(spec)
                put(made, inner, _smallest(kind, tag, chosen))
                yield inner, kind, made
                yield from _inside(inner, kind, made)


def _smallest(kind: type[BaseModel], tag: str, chosen: str | None) -> Spec:
    if tag == "type" and chosen in TASKS:
        return task_of(str(chosen))
    needed = {
        name: value_of(name, field)
        for name, field in kind.model_fields.items()
        if field.is_required()
    }
    if kind.__name__ == "ModelSpec":
        needed = {"name_or_path": "org/model"}
    return needed | ({tag: chosen} if chosen else {})


# ---- the suggestion, applied -------------------------------------------------------------------


def at(spec: Any, path: str) -> Any:
    for part in path.split(".") if path else ():
        spec = spec.get(part) if isinstance(spec, dict) else None
    return spec


def put(spec: Spec, path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for part in parents:
        if isinstance(spec.get(part), str):
            spec[part] = {"type": spec[part]}
        spec = spec.setdefault(part, {})
    spec[name] = value


def without(spec: Spec, path: str) -> Spec:
    made = copy.deepcopy(spec)
    parent, _, name = path.rpartition(".")
    del at(made, parent)[name]
    return made


def written(message: str) -> Spec | None:
    """What the message says to write, as YAML."""
    found = re.search(r"[wW]rite `([^`]*)`", message)
    return None if found is None else yaml.safe_load(found[1])


def followed(spec: Spec, fault: Fault) -> Spec:
    """The spec with what the fault proposes."""
    form = written(fault.message)
    parent = fault.path.rpartition(".")[0]
    if fault.suggestion is None:
        assert form is not None, fault
        ((name, value),) = form.items()
        made = copy.deepcopy(spec)
        put(made, f"{parent}.{name}".strip("."), value)
        return made
    if fault.code == "invalid_value":
        made = copy.deepcopy(spec)
        put(made, fault.path, fault.suggestion)
        return made
    given, made = at(spec, fault.path), without(spec, fault.path)
    target = fault.suggestion
    if "a field of the spec itself" in fault.message:
        parent = ""
    target = target if "." in target or not parent else f"{parent}.{target}"
    if target == "dataset.columns":  # the task's column → the user's
        target, given = "dataset.columns.text", "body"
    put(made, target, given if form is None else form[target.rpartition(".")[2]])
    for name in re.findall(r"also needs (.*)\.", fault.message):
        for needed in re.findall(r"`(\w+)`", name):
            put(made, f"{target.partition('.')[0]}.{needed}", {"method": "lora"}.get(needed, "x/y"))
    for needed in re.findall(r"also needs `(\w+\.\w+)`", fault.message):
        put(made, needed, "x/y")
    return made


def faults(spec: Spec) -> list[tuple[str, str, str]]:
    return [(each.path, each.code, each.message) for each in collect(spec).faults]


def require_mended(right: Spec, wrong: Spec, path: str) -> Fault:
    """The fault at `path` in `wrong`, whose proposal leaves no fault but those of `right`."""
    found = [each for each in collect(wrong).faults if each.path == path]
    # A field of several types has a fault for each.
    (fault,) = [each for each in found if each.suggestion or written(each.message)] or found
    after = faults(followed(wrong, fault))
    new = [each for each in after if each not in faults(right)]
    assert new == [], (path, at(wrong, path), fault.message, fault.suggestion)
    return fault


# ---- names --------------------------------------------------------------------------------------


def test_a_model_without_weights() -> None:
    right = {**base(), "model": {"config": {"model_type": "gpt2"}, "tokenizer_name": "x/y"}}
    wrong = without(right, "model") | {"model_type": "gpt2"}
    assert "model.tokenizer_name" in require_mended(right, wrong, "model_type").message


def test_a_letter_is_missing_in_the_name_of_any_field() -> None:
    followed_names = set()
    for path, model, spec in sections():
        for name, field in model.model_fields.items():
            if len(name) <= LONGEST_SKIPPED or at(spec, f"{path}.{name}".strip(".")) is not None:
                continue
            wrong = copy.deepcopy(spec)
            misspelt = f"{path}.{name[:-2]}{name[-1]}".strip(".")
            put(wrong, misspelt, value_of(name, field))
            fault = require_mended(spec, wrong, misspelt)
            assert fault.suggestion == name, (path, name)
            followed_names.add((path, name))
    assert len(followed_names) > 200


def test_an_older_name_of_an_option_is_misspelt() -> None:
    for older, name in ALIASES.items():
        value = value_of(name, JobSpec.model_fields["training"].annotation.model_fields[name])  # type: ignore[union-attr]
        wrong = base(training={f"{older[:-1]}": value})
        assert require_mended(base(), wrong, f"training.{older[:-1]}").suggestion == name


def fields_named(place: str) -> list[tuple[Spec, FieldInfo]]:
    """The field at `place` in each kind of its section, with a spec of that kind."""
    section, _, name = place.rpartition(".")
    return [
        (spec, model.model_fields[name])
        for path, model, spec in sections()
        if path == section and name in model.model_fields
    ]


@pytest.mark.parametrize(("name", "places"), COMMON_NAMES.items())
def test_a_name_of_another_tool(name: str, places: tuple[str, ...]) -> None:
    for place in places:
        section = place.rpartition(".")[0]
        assert fields_named(place), place
        for spec, field in fields_named(place):
            value = WRITTEN.get(name, value_of(place.rpartition(".")[2], field))
            assert name in WRITTEN or SPLITS.fullmatch(name), "what do people write there?"
            spec = spec | COMPANIONS.get(name, {})
            if f"{section}.{name}" != place:
                _require_mended_unless_given(spec, f"{section}.{name}", value)
            _require_mended_unless_given(spec, name, value)
            _require_mended_unless_given(spec, f"training.{name}", value)
            if section in spec and JobSpec.model_fields[section].default is None:
                _require_mended_unless_given(without(spec, section), name, value)


def _require_mended_unless_given(spec: Spec, path: str, value: Any) -> None:
    """The proposal may name a field that the spec has: then one of the two is to be removed."""
    wrong = copy.deepcopy(spec)
    put(wrong, path, value)
    (fault,) = [each for each in collect(wrong).faults if each.path == path]
    if "given already" in fault.message:
        assert faults(without(wrong, path)) == faults(spec)
    else:
        require_mended(spec, wrong, path)


@pytest.mark.parametrize("task", TASKS)
def test_an_option_of_the_scripts(task: str) -> None:
    """In any section that does not have it: a place that the spec's task has, or none."""
    right = base(task=task_of(task))
    for name, place in PLACES.items():
        (_, field), *_ = fields_named(place)
        value = VALUES.get(name, value_of(place.rpartition(".")[2], field))
        for path in (name, f"training.{name}"):
            wrong = copy.deepcopy(right)
            put(wrong, path, value)
            (fault,) = [each for each in collect(wrong).faults if each.path == path]
            if fault.suggestion is None:
                assert fault.message.startswith(
                    (f"this task does not have it; others have it as `{place}`", "refused: ")
                ), (path, fault)
            elif fault.suggestion != "dataset.columns":
                require_mended(right, wrong, path)


def test_a_field_of_the_spec_itself_in_a_section() -> None:
    found = 0
    for name in ("mode", "priority", "max_retries", "timeout_seconds", "metadata", "hub"):
        value = {"model_id": "me/mine"} if name == "hub" else value_of(name, ROOT_FIELDS[name])
        for section in ("task", "dataset", "training", "tracking"):
            wrong = base()
            put(wrong, f"{section}.{name}", value)
            fault = require_mended(base(), wrong, f"{section}.{name}")
            found += "a field of the spec itself" in fault.message
    assert found > 10


# ---- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "task"), COMMON_TASKS.items())
def test_a_task_of_another_tool(name: str, task: str) -> None:
    for given in (name, name.upper().replace("-", "_")):
        fault = require_mended(base(task=task_of(task)), base(task=given), "task")
        assert fault.suggestion == task
        wrong = base(task={**task_of(task), "type": given})
        assert require_mended(base(task=task_of(task)), wrong, "task.type").suggestion == task


def test_a_letter_is_missing_in_any_value() -> None:
    """Of a choice, or of the kind of a section."""
    followed_values = 0
    for path, model, spec in sections():
        for name, field in model.model_fields.items():
            place = f"{path}.{name}".strip(".")
            for value in choices(field):
                if len(value) <= LONGEST_SKIPPED:
                    continue
                right, wrong = copy.deepcopy(spec), copy.deepcopy(spec)
                put(right, place, value)
                put(wrong, place, f"{value[:-2]}{value[-1]}")
                fault = require_mended(right, wrong, place)
                assert fault.suggestion == value, (place, value)
                followed_values += 1
    assert followed_values > 100


def places() -> Iterator[tuple[str, Spec]]:
    for path, model, spec in sections():
        yield from ((f"{path}.{name}".strip("."), spec) for name in model.model_fields)


def test_a_number_out_of_its_range() -> None:
    """The bounds that the fault names are accepted, unless it says that they are not."""
    followed_bounds = 0
    for place, spec in places():
        for given in (-(10**9), 10**9):
            wrong = copy.deepcopy(spec)
            put(wrong, place, given)
            for fault in collect(wrong).faults:
                if fault.path != place or fault.code != "invalid_value":
                    continue
                for bound in re.findall(r"at (?:least|most) (-?[\d.e+-]+)", str(fault.allowed)):
                    right = copy.deepcopy(spec)
                    put(right, place, yaml.safe_load(bound))
                    codes = [each.code for each in collect(right).faults if each.path == place]
                    assert not {"invalid_value", "invalid_type"} & set(codes), (place, bound)
                    followed_bounds += 1
    assert followed_bounds > 50


# ---- forms --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "given"),
    [
        *(("peft", text) for text in ("lora", "LoRA", "qlora", "QLoRA", "ia3", "IA3")),
        *(("model", text) for text in ("bert-base-uncased", "org/model", "/models/a")),
        *(("dataset", text) for text in ("squad", "rajpurkar/squad")),
        ("peft.quantization", True),
    ],
)
def test_a_section_as_text(path: str, given: Any) -> None:
    right = base(resources={"gpus": 1}, training={"eval_strategy": "epoch"})
    wrong = copy.deepcopy(right)
    if path == "peft.quantization":
        put(wrong, "peft.method", "lora")
    put(wrong, path, given)
    require_mended(right, wrong, path)


@pytest.mark.parametrize("text", ["dora", "full", "none", "a b"])
def test_what_stands_for_no_section_has_no_proposal(text: str) -> None:
    (fault,) = collect(base(peft=text)).faults
    assert fault.message == "must be an object"


@pytest.mark.parametrize("share", [0.001, 0.2, 0.999])
def test_a_share_of_the_rows(share: float) -> None:
    for path in ("dataset.validation", "dataset.validation_split_percentage"):
        wrong = base()
        put(wrong, path, share)
        (fault,) = collect(wrong).faults
        percent = re.search(r"percentage: (\d+)|percent: (\d+) for", fault.message)
        assert percent is not None
        right = base()
        put(right, "dataset.validation_split_percentage", int(percent[1] or percent[2]))
        assert faults(right) == []


# ---- sentences ----------------------------------------------------------------------------------


ROOT: Final = Path(__file__).parents[3]
FIELD: Final = re.compile(
    r"`((?:task|model|dataset|training|peft|resources|tracking|hub|secrets)(?:\.[a-z_]+)+)"
    r"(?:: ([a-z0-9_.-]+))?`"
)
NO_FIELDS: Final = ("secrets.key", "model.safetensors", "training.logging_dir")
"""Two files, and an option of transformers that is ignored."""
MAPPINGS: Final = ("dataset.columns.", "dataset.validation.")
"""Their keys are the user's."""
"""`section.field` or `section.field: value` in a message."""


def test_messages_name_fields_that_exist_with_values_that_they_take() -> None:
    found: dict[str, set[str | None]] = {}
    for folder in ("service", "worker"):
        for path in (ROOT / folder).rglob("*.py"):
            for place, value in FIELD.findall(path.read_text(encoding="utf-8")):
                found.setdefault(place, set()).add(value or None)
    assert len(found) > 50
    for place, values in found.items():
        if place in NO_FIELDS or place.startswith(MAPPINGS):
            continue
        specs = [spec for spec, _ in fields_named(place)]
        assert specs, place
        for value in values - {None}:
            assert any(_takes(spec, place, str(value)) for spec in specs), (place, value)


def _takes(spec: Spec, place: str, value: str) -> bool:
    made = copy.deepcopy(spec)
    put(made, place, yaml.safe_load(value))
    wrong = {"invalid_value", "invalid_type"}
    return not any(each.path == place and each.code in wrong for each in collect(made).faults)
