"""A request of OpenAI's API to create a job, as the spec of a job."""

import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from service.api.faults.names import nearest
from service.api.faults.redaction import cut, shown
from service.api.http.merge_patch import merged
from service.api.openai import hyperparameters as auto
from service.api.problems.errors import InvalidSpecError, parameter_fault
from service.api.schemas.problems import Fault
from service.contract.spec import model_names
from service.contract.spec.spec import JobSpec

Json = dict[str, Any]
_LARGEST_SEED: Final = 2**31 - 1
_TASKS: Final = {"supervised": "chat", "dpo": "preference"}
_CLOSED_MODEL: Final = re.compile(r"(ft:)?(gpt-[345]|o[1-9]|davinci-00|babbage-00)[\w.:-]*")
"""What scripts for OpenAI's API name. None of these is an id of the Hub; `gpt2` is one."""
_NATIVE: Final = frozenset(JobSpec.model_fields) - {"model", "metadata"}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


_Auto = BeforeValidator(lambda value: None if value == "auto" else value)


class _Hyperparameters(_Section):
    n_epochs: Annotated[Annotated[int, Field(ge=1, le=1000)] | None, _Auto] = None
    batch_size: Annotated[Annotated[int, Field(ge=1, le=65_536)] | None, _Auto] = None
    learning_rate_multiplier: Annotated[Annotated[float, Field(gt=0, le=1e6)] | None, _Auto] = None


class _DpoHyperparameters(_Hyperparameters):
    beta: Annotated[Annotated[float, Field(gt=0, le=1e6)] | None, _Auto] = None


class _Supervised(_Section):
    hyperparameters: _Hyperparameters | None = None


class _Dpo(_Section):
    hyperparameters: _DpoHyperparameters | None = None


class _Method(_Section):
    type: Literal["supervised", "dpo", "reinforcement"]
    supervised: _Supervised | None = None
    dpo: _Dpo | None = None
    reinforcement: Any = None


class _Mlflow(_Section):
    project: str | None = None
    name: str | None = None


class _Integration(_Section):
    type: Literal["mlflow", "wandb"]
    mlflow: _Mlflow | None = None
    wandb: Any = None


class _Request(_Section):
    """OpenAI's own fields; `model` may be a section of a spec, too."""

    model: str | Json
    training_file: str | None = None
    validation_file: str | None = None
    hyperparameters: _Hyperparameters | None = None
    method: _Method | None = None
    suffix: Annotated[str, Field(max_length=64)] | None = None
    seed: Annotated[int, Field(ge=0, le=_LARGEST_SEED)] | None = None
    metadata: Json | None = None
    integrations: Annotated[list[_Integration], Field(max_length=20)] | None = None


@dataclass
class Translation:
    spec: Json
    params: dict[str, str] = field(default_factory=dict)
    """Place in the spec → the parameter of the request that it came from."""

    def in_words_of_request(self, fault: Fault) -> Fault:
        """The fault of the spec, at the parameter of the request that causes it."""
        for place, param in self.params.items():
            if fault.path == place or fault.path.startswith(f"{place}."):
                return fault.model_copy(update={"path": param})
        return fault


def translate(body: Any, count_examples: Callable[[str], int | None]) -> Translation:
    """The spec that the request stands for. Its form is not validated here, but what the request
    says of it is: InvalidSpecError with every fault.

    `count_examples` is given the id of the training file.
    """
    if not isinstance(body, dict):
        raise InvalidSpecError(
            [Fault(path="", code="invalid_type", message="the body must be an object")]
        )
    own = {name: value for name, value in body.items() if name not in _NATIVE}
    # Null counts as not given.
    native = {name: body[name] for name in _NATIVE & body.keys() if body[name] is not None}
    try:
        request = _Request.model_validate(own)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise InvalidSpecError([_fault(each) for each in errors[:100]]) from None
    translator = _Translator(request, native)
    if translator.faults:
        raise InvalidSpecError(translator.faults)
    return translator.translation(count_examples)


def _fault(error: Any) -> Fault:
    path = ".".join(str(part) for part in error["loc"] if part not in ("str", "dict[str,any]"))
    if error["type"] != "extra_forbidden":
        return parameter_fault({**error, "loc": path.split(".")})
    section, _, name = path.rpartition(".")
    known = _known(section)
    near = nearest(name, known)
    hint = f"; did you mean `{near}`?" if near else ""
    return Fault(
        path=cut(path),
        code="unknown_field",
        message=f"unknown field{hint}",
        given=shown(path, error.get("input")),
        suggestion=near,
    )


def _known(section: str) -> list[str]:
    name = section.rpartition(".")[2]
    if not section:
        return [*_Request.model_fields, *sorted(_NATIVE)]
    if name == "hyperparameters":
        return list(_DpoHyperparameters.model_fields)
    return {"method": list(_Method.model_fields), "mlflow": list(_Mlflow.model_fields)}.get(
        name, ["hyperparameters"] if name in _TASKS else ["type", "mlflow"]
    )


class _Translator:
    def __init__(self, request: _Request, native: Json) -> None:
        self._request = request
        self._native = native
        self._hyperparameters, self._place = self._given_hyperparameters()
        self.faults = [*self._refused(), *self._clashes()]

    def _given_hyperparameters(self) -> tuple[Json, str]:
        """What is given, and the path of its section."""
        method = self._request.method
        old = self._request.hyperparameters
        if method is None or method.type == "reinforcement":
            return (old.model_dump(exclude_none=True) if old else {}), "hyperparameters"
        section: _Supervised | _Dpo | None = getattr(method, method.type)
        new = section.hyperparameters if section is not None else None
        place = f"method.{method.type}.hyperparameters"
        both = {
            **(old.model_dump(exclude_none=True) if old else {}),
            **(new.model_dump(exclude_none=True) if new else {}),
        }
        return both, place if new is not None else "hyperparameters"

    # ---- what is refused ------------------------------------------------------------------------

    def _refused(self) -> Iterator[Fault]:
        method = self._request.method
        if method is not None and method.type == "reinforcement":
            yield Fault(
                path="method.type",
                code="unsupported_option",
                message="`reinforcement` is not offered: this service has no graders. `dpo` learns "
                "from pairs of answers, and `supervised` from good ones",
                given="reinforcement",
            )
        yield from self._of_other_method()
        yield from self._of_closed_model()
        for index, integration in enumerate(self._request.integrations or ()):
            if integration.type == "wandb":
                yield Fault(
                    path=f"integrations.{index}.type",
                    code="unsupported_option",
                    message="`wandb` is not configured on this service. Leave it out: every job is "
                    "logged to MLflow, whose page GET /v1/jobs/{id} names; "
                    '`{"type": "mlflow", "mlflow": {"project": …}}` chooses the experiment',
                    given="wandb",
                )
        if self._request.training_file is None and "dataset" not in self._native:
            yield Fault(
                path="training_file", code="missing_field", message="required, but not given"
            )

    def _of_closed_model(self) -> Iterator[Fault]:
        model = self._request.model
        if isinstance(model, str) and _CLOSED_MODEL.fullmatch(model):
            yield Fault(
                path="model",
                code="unsupported_option",
                message="OpenAI does not publish the weights of this model. Name a model of the "
                "Hugging Face Hub, such as `HuggingFaceTB/SmolLM2-135M-Instruct`",
                given=shown("model", model),
            )

    def _of_other_method(self) -> Iterator[Fault]:
        method = self._request.method
        if method is None:
            return
        for name in _TASKS:
            if name != method.type and getattr(method, name) is not None:
                yield _clash(f"method.{name}", f"method.type: {method.type}")
        old = self._request.hyperparameters
        for name, value in (old.model_dump(exclude_none=True) if old else {}).items():
            if self._hyperparameters.get(name) != value:
                yield _clash(f"hyperparameters.{name}", f"{self._place}.{name}")

    def _clashes(self) -> Iterator[Fault]:
        """Faults for a value that is given in both APIs' terms."""
        for param, value, *places in self._pairs():
            for place in places:
                if value is not None and _has(self._native, place):
                    yield _clash(param, place)
        yield from self._of_other_source()
        method, task = self._request.method, self._native.get("task")
        kind = task.get("type") if isinstance(task, dict) else task
        if method is not None and method.type in _TASKS and kind not in (None, _TASKS[method.type]):
            yield _clash("method.type", "task")

    def _of_other_source(self) -> Iterator[Fault]:
        """Files of the request, whose `dataset` has its rows from elsewhere."""
        dataset = self._native.get("dataset")
        source = dataset.get("source") if isinstance(dataset, dict) else None
        if source in (None, "upload"):
            return
        for param in ("training_file", "validation_file"):
            if getattr(self._request, param) is not None:
                yield Fault(
                    path=param,
                    code="conflict",
                    message="an uploaded file, but `dataset.source` is another one: give one of "
                    "them, `training_file: null` for none",
                )

    def _pairs(self) -> Iterator[tuple[Any, ...]]:
        """A parameter, its value, and the places in a spec that say the same."""
        request, given, place = self._request, self._hyperparameters, self._place
        yield "training_file", request.training_file, "dataset.train"
        yield "validation_file", request.validation_file, "dataset.validation"
        yield "suffix", request.suffix, "name"
        yield "seed", request.seed, "training.seed"
        yield f"{place}.n_epochs", given.get("n_epochs"), "training.num_train_epochs"
        yield (
            f"{place}.batch_size",
            given.get("batch_size"),
            "training.per_device_train_batch_size",
            "training.gradient_accumulation_steps",
        )
        multiplier = f"{place}.learning_rate_multiplier"
        yield multiplier, given.get("learning_rate_multiplier"), "training.learning_rate"
        yield f"{place}.beta", given.get("beta"), "task.beta"

    # ---- the spec -------------------------------------------------------------------------------

    def translation(self, count_examples: Callable[[str], int | None]) -> Translation:
        request = self._request
        spec: Json = {"task": self._task(), "model": self._model(), "dataset": self._dataset()}
        params = {
            "model.name_or_path": "model",
            "model.job": "model",
            "model.checkpoint": "model",
            "dataset.train": "training_file",
            "dataset.validation": "validation_file",
            "training.seed": "seed",
            "name": "suffix",
            "training.num_train_epochs": f"{self._place}.n_epochs",
            "training.per_device_train_batch_size": f"{self._place}.batch_size",
            "training.gradient_accumulation_steps": f"{self._place}.batch_size",
            "training.learning_rate": f"{self._place}.learning_rate_multiplier",
            "task.beta": f"{self._place}.beta",
        }
        if request.suffix:
            spec["name"] = request.suffix
        if request.metadata:
            spec["metadata"] = request.metadata
        for integration in request.integrations or ():
            spec["tracking"] = _tracking(integration.mlflow)
        if self._native.get("mode", "train") == "train":
            spec["training"] = self._training(count_examples)
        whole = {
            **spec,
            **{name: merged(spec.get(name), self._native[name]) for name in self._native},
        }
        own = {place: param for place, param in params.items() if not _has(self._native, place)}
        if isinstance(request.model, dict):
            own = {place: param for place, param in own.items() if param != "model"}
        return Translation(whole, own)

    def _task(self) -> Json:
        """Without the one that is given, which it is merged with."""
        method = self._request.method
        found: Json = {"type": "chat" if method is None else _TASKS[method.type]}
        if "beta" in self._hyperparameters:
            found["beta"] = self._hyperparameters["beta"]
        return found

    def _model(self) -> Json:
        model = self._request.model
        if isinstance(model, dict):
            return model
        named = model_names.parse(model)
        if named is None:
            return {"name_or_path": model}
        return {"job": named.job_id} | ({} if named.step is None else {"checkpoint": named.step})

    def _dataset(self) -> Json:
        request = self._request
        if request.training_file is None:
            found: Json = {}
        else:
            found = {"source": "upload", "train": [request.training_file]}
        if request.validation_file is not None:
            found["validation"] = [request.validation_file]
        return found

    def _training(self, count_examples: Callable[[str], int | None]) -> Json:
        request, given = self._request, self._hyperparameters
        examples = count_examples(request.training_file) if request.training_file else None
        own = self._native.get("training")
        own = own if isinstance(own, dict) else {}
        epochs = given.get("n_epochs") or auto.auto_epochs(examples)
        size = given.get("batch_size") or auto.auto_batch_size(examples, epochs)
        batch = auto.split_batch(size)
        multiplier = given.get("learning_rate_multiplier") or auto.auto_multiplier(size)
        task = merged(self._task(), self._native.get("task", {}))
        task_type = str(task.get("type") if isinstance(task, dict) else task)
        base = auto.base_rate(task_type, is_adapter="peft" in self._native)
        found: Json = {
            "num_train_epochs": epochs,
            "learning_rate": float(f"{base * multiplier:.6g}"),
            "seed": secrets.randbelow(_LARGEST_SEED) if request.seed is None else request.seed,
            "logging_steps": auto.logging_steps(examples, epochs, size),
            "include_num_input_tokens_seen": "non_padding",
            "save_strategy": "epoch",
            "save_total_limit": 3,
        }
        if "per_device_train_batch_size" not in own:
            found["per_device_train_batch_size"] = batch.per_device
            found["gradient_accumulation_steps"] = batch.accumulated
        if self._validates():
            found["eval_strategy"] = "epoch"
        return found

    def _validates(self) -> bool:
        own = ("dataset.validation", "dataset.validation_split_percentage")
        return self._request.validation_file is not None or any(
            _has(self._native, place) for place in own
        )


def _tracking(named: _Mlflow | None) -> Json:
    given = {} if named is None else named.model_dump(exclude_none=True)
    names = {"project": "experiment_name", "name": "run_name"}
    return {names[name]: value for name, value in given.items()}


def _has(native: Json, place: str) -> bool:
    section, _, name = place.partition(".")
    found = native.get(section)
    if not name:
        return found is not None
    return isinstance(found, dict) and found.get(name) is not None


def _clash(param: str, place: str) -> Fault:
    return Fault(
        path=param,
        code="conflict",
        message=f"`{place}` decides the same: give one of them",
    )
