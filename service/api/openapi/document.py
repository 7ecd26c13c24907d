"""The OpenAPI document: what FastAPI generates, completed with what it cannot know."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from service.api.openapi.access import add_access
from service.api.openapi.names import name_models, reference
from service.api.problems.examples import example_of
from service.api.problems.face import Face
from service.api.schemas.predictions import PredictRequest
from service.api.schemas.problems import Problem
from service.contract.search.spec import SearchSpec
from service.contract.spec.spec import JobSpec

_REF: Final = "#/components/schemas/{model}"
_PROBLEM: Final = reference("Problem")
_DESCRIPTIONS: Final[dict[int, str]] = {
    400: "The body cannot be read at all.",
    401: "A valid API key is required.",
    403: "The key does not allow this; `needs` says what does.",
    404: "It does not exist.",
    409: "Its current state does not allow this.",
    410: "It was removed to make room.",
    413: "The body is too large.",
    415: "The Content-Type is not supported.",
    416: "The range cannot be served.",
    422: "The request can be read but is wrong; `errors` names every fault.",
    429: "Too many of these requests at once; try again in a moment.",
    503: "The database is unreachable, a component is missing, or the service is busy.",
    504: "It takes too long.",
    507: "The file does not fit on the disk.",
}

_UPLOADED: Final = {
    "source": "upload",
    "train": "file-0199a0b1c2d3e4f5a6b7c8d9",
    "validation": "file-0199a0b1c2d3e4f5a6b7c8da",
}
_LORA: Final = {"method": "lora", "r": 16, "target_modules": "all-linear", "merge": True}
EXAMPLE_JOBS: Final[dict[str, dict[str, Any]]] = {
    "hub": {
        "summary": "SQuAD from the Hub",
        "value": {
            "name": "squad-distilbert",
            "task": "question-answering",
            "model": {"name_or_path": "distilbert/distilbert-base-uncased"},
            "dataset": {
                "source": "hub",
                "name": "rajpurkar/squad",
                "train": "train[:10%]",
                "validation": "validation[:500]",
            },
            "training": {
                "num_train_epochs": 2,
                "learning_rate": 3e-05,
                "warmup_steps": 0.1,
                "eval_strategy": "epoch",
                "save_strategy": "epoch",
                "load_best_model_at_end": True,
                "metric_for_best_model": "f1",
            },
            "hub": {"model_id": "my-team/squad-distilbert"},
            "metadata": {"team": "search"},
        },
    },
    "upload": {
        "summary": "Uploaded files, SQuAD v2, on the CPU",
        "value": {
            "task": {"type": "question-answering", "version_2_with_negative": True},
            "model": {"name_or_path": "/srv/models/minilm"},
            "dataset": {
                "source": "upload",
                "train": "file-0199a0b1c2d3e4f5a6b7c8d9",
                "validation": ["file-0199a0b1c2d3e4f5a6b7c8da"],
            },
            "training": {"max_steps": 100, "bf16": True, "eval_strategy": "steps"},
            "resources": {"gpus": 0},
        },
    },
    "causal-lm": {
        "summary": "A language model from scratch, a share of the rows set aside",
        "value": {
            "task": {"type": "causal-lm", "block_size": 512, "separate_documents": True},
            "model": {
                "config": {
                    "model_type": "gpt2",
                    "config_overrides": {"n_layer": 6, "n_embd": 384, "n_head": 6},
                },
                "tokenizer_name": "openai-community/gpt2",
            },
            "dataset": {
                "source": "upload",
                "train": "file-0199a0b1c2d3e4f5a6b7c8d9",
                "validation_split_percentage": 5,
            },
            "training": {"learning_rate": 6e-4, "warmup_steps": 0.05, "eval_strategy": "epoch"},
        },
    },
    "chat": {
        "summary": "Conversations: LoRA on the assistant's turns, packed, with exact match",
        "value": {
            "task": {
                "type": "chat",
                "packing": "bfd",
                "generate": {"max_new_tokens": 200, "exact_match": r"#### (-?[\d.,]+)"},
            },
            "model": {"name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct"},
            "dataset": _UPLOADED,
            "peft": _LORA,
            "training": {"learning_rate": 5e-4, "eval_strategy": "epoch"},
        },
    },
    "preference": {
        "summary": "Preferences (DPO), beginning with the model of a `chat` job",
        "value": {
            "task": {"type": "preference", "loss_type": "sigmoid", "beta": 0.1},
            "model": {"job": "job-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"},
            "dataset": _UPLOADED,
            "peft": _LORA,
            "training": {"learning_rate": 5e-5, "eval_strategy": "epoch"},
        },
    },
    "model-of-job": {
        "summary": "Question answering with the model of another job",
        "value": {
            "task": "question-answering",
            "model": {"job": "job-0199a0b1c2d37e4f85a6b7c8d9e0f1a2", "checkpoint": "best"},
            "dataset": {"source": "hub", "name": "rajpurkar/squad"},
        },
    },
    "evaluate": {
        "summary": "The scores of a model as it is, without training",
        "value": {
            "mode": "evaluate",
            "task": "question-answering",
            "model": {"name_or_path": "distilbert/distilbert-base-cased-distilled-squad"},
            "dataset": {"source": "hub", "name": "rajpurkar/squad", "validation": "validation"},
        },
    },
    "predict": {
        "summary": "A model's predictions for rows without labels",
        "value": {
            "mode": "predict",
            "task": "text-classification",
            "model": {"job": "job-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"},
            "dataset": {"source": "upload", "test": "file-0199a0b1c2d3e4f5a6b7c8d9"},
        },
    },
    "path": {
        "summary": "A file on the worker, other column names",
        "value": {
            "task": "question-answering",
            "model": {"name_or_path": "distilbert/distilbert-base-uncased"},
            "dataset": {
                "source": "path",
                "format": "jsonl",
                "train": "/srv/data/train.jsonl",
                "columns": {"context": "passage"},
            },
        },
    },
}


def body(content: dict[str, Any], *json_types: str) -> dict[str, Any]:
    """A body of this content. YAML is only described: openapi-python-client warns of a content type
    that it cannot send."""
    types = ("application/json", *json_types)
    return {
        "requestBody": {
            "required": True,
            "description": "JSON, or YAML of up to 128 KiB as `application/yaml`.",
            "content": dict.fromkeys(types, content),
        }
    }


SPEC_BODY: Final = body({"schema": reference("JobSpec"), "examples": EXAMPLE_JOBS})
EXAMPLE_SEARCHES: Final[dict[str, dict[str, Any]]] = {
    "learning-rate": {
        "summary": "Learning rate and warm-up of question answering; losers are paused early",
        "value": {
            "name": "squad-search",
            "job": EXAMPLE_JOBS["hub"]["value"],
            "space": {
                "training.learning_rate": {"low": 1e-6, "high": 1e-3, "log": True},
                "training.warmup_steps": {"low": 0.0, "high": 0.3},
                "training.per_device_train_batch_size": {"choices": [8, 16, 32]},
            },
            "objective": {"metric": "f1"},
            "sampler": {"name": "tpe", "seed": 42},
            "pruner": {"name": "asha", "unit": "epochs"},
            "max_trials": 30,
            "max_parallel": 4,
        },
    },
    "template": {
        "summary": "The space that suits the task; the best values train for longer",
        "value": {
            "job": EXAMPLE_JOBS["chat"]["value"],
            "max_trials": 12,
            "best": {"action": "refit", "set": {"training.num_train_epochs": 3}},
        },
    },
}
SEARCH_BODY: Final = body({"schema": reference("SearchSpec"), "examples": EXAMPLE_SEARCHES})
PREDICT_BODY: Final = body({"schema": reference("PredictRequest")})
_JOB_PATCH: Final = {
    "type": "object",
    "description": "The fields in which the new spec differs from the `spec` of the original.",
}
PATCH_BODY: Final = body(
    {
        "schema": reference("JobPatch"),
        "examples": {
            "same": {"summary": "An identical job", "value": {}},
            "learning-rate": {
                "summary": "Another learning rate and name, no push to the Hub",
                "value": {"name": "slower", "training": {"learning_rate": 1e-5}, "hub": None},
            },
        },
    },
    "application/merge-patch+json",
)
HUB_BODY: Final = body(
    {
        "schema": reference("HubSpec"),
        "examples": {
            "elsewhere": {
                "summary": "A private repository of another team",
                "value": {"model_id": "other-team/squad-distilbert"},
            }
        },
    }
)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that can return these problems."""
    return {status: _problem_response(status) for status in statuses}


def _problem_response(status: int) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": _PROBLEM}
    if (example := example_of(status)) is not None:
        content["example"] = example
    response: dict[str, Any] = {
        "description": _DESCRIPTIONS[status],
        "content": {"application/problem+json": content},
    }
    if status == 401:
        response["headers"] = {"WWW-Authenticate": {"required": True, "schema": {"type": "string"}}}
    return response


_MODELS: Final[tuple[type[BaseModel], ...]] = (JobSpec, SearchSpec, Problem, PredictRequest)
"""Models that no route declares: their bodies are read before they are checked."""


def build(app: FastAPI) -> dict[str, Any]:
    """The document: FastAPI's, with the spec, the problems, the key and the common header."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
    )
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    faces: tuple[Face, ...] = app.state.faces
    for model in (*_MODELS, *(model for face in faces for model in face.models)):
        schema = model.model_json_schema(ref_template=_REF)
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    schemas["JobPatch"] = _JOB_PATCH
    name_models(document)
    components["securitySchemes"] = {
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "The operator makes keys with `finetune keys create`.",
        }
    }
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _complete(operation, is_open=path.startswith("/health/"))
    add_access(app, document)
    for face in faces:
        face.errors.describe(document)
    return document


def _complete(operation: dict[str, Any], *, is_open: bool) -> None:
    operation["security"] = [] if is_open else [{"key": []}]
    for response in operation["responses"].values():
        response.setdefault("headers", {})["X-Request-Id"] = {
            "required": True,
            "description": "That of the request, if it has one; also in the server's log.",
            "schema": {"type": "string"},
        }
