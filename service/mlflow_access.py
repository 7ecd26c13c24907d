"""Which requests the MLflow server may be sent: by the service, and by its users.

A list of what is allowed, because MLflow has routes that read any file of its user
(`artifact_location`), send requests to any address (webhooks, gateway) and run commands
(assistant). The proxy of the API applies it to users, and the server itself to whoever has its
token.
"""

import json
import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Final
from urllib.parse import parse_qsl


class Access(IntEnum):
    """Each includes those above it."""

    READ = 1
    ANNOTATE = 2
    """Tags, aliases and descriptions."""
    SERVICE = 3


def _rules(paths: Mapping[str, Iterable[str]]) -> dict[str, re.Pattern[str]]:
    """Method → what its paths match; `*` stands for one segment, `**` for any number."""
    return {method: re.compile("|".join(map(_pattern, paths[method]))) for method in paths}


def _pattern(path: str) -> str:
    version, _, rest = path.partition(" ")
    prefix = {"2": "/(?:ajax-)?api/2\\.0/", "3": "/(?:ajax-)?api/3\\.0/", "": "/"}[version]
    return prefix + re.escape(rest).replace(r"\*\*", ".+").replace(r"\*", "[^/]+")


_ALLOWED: Final = {
    Access.READ: _rules(
        {
            "GET": [
                *(" ", " health", " version", " static-files/**", " get-artifact"),
                *(" model-versions/get-artifact",),
                *("2 mlflow/experiments/get", "2 mlflow/experiments/get-by-name"),
                *("2 mlflow/experiments/search", "2 mlflow/runs/get", "2 mlflow/artifacts/list"),
                *("2 mlflow/metrics/get-history", "2 mlflow/metrics/get-history-bulk"),
                "2 mlflow/metrics/get-history-bulk-interval",
                *("2 mlflow/logged-models/*", "2 mlflow/logged-models/*/artifacts/directories"),
                "2 mlflow/logged-models/*/artifacts/files",
                *("2 mlflow/registered-models/get", "2 mlflow/registered-models/search"),
                *("2 mlflow/registered-models/get-latest-versions",),
                *("2 mlflow/registered-models/alias", "2 mlflow/model-versions/get"),
                *("2 mlflow/model-versions/search", "2 mlflow/model-versions/get-download-uri"),
                *("2 mlflow-artifacts/artifacts", "2 mlflow-artifacts/artifacts/**"),
                *("3 mlflow/server-info", "3 mlflow/ui-telemetry"),
            ],
            "POST": [
                *("2 mlflow/experiments/search", "2 mlflow/experiments/search-datasets"),
                *("2 mlflow/runs/search", "2 mlflow/logged-models/search"),
                *("2 mlflow/registered-models/get-latest-versions", " graphql"),
                *("3 mlflow/traces/search", "3 mlflow/datasets/search"),
            ],
        }
    ),
    Access.ANNOTATE: _rules(
        {
            "POST": [
                *("2 mlflow/runs/set-tag", "2 mlflow/runs/delete-tag"),
                "2 mlflow/experiments/set-experiment-tag",
                "2 mlflow/experiments/delete-experiment-tag",
                *("2 mlflow/registered-models/set-tag", "2 mlflow/registered-models/alias"),
                "2 mlflow/model-versions/set-tag",
            ],
            "PATCH": [
                *("2 mlflow/logged-models/*/tags", "2 mlflow/registered-models/update"),
                "2 mlflow/model-versions/update",
            ],
            "DELETE": [
                *("2 mlflow/logged-models/*/tags/*", "2 mlflow/registered-models/delete-tag"),
                *("2 mlflow/registered-models/alias", "2 mlflow/model-versions/delete-tag"),
            ],
        }
    ),
    Access.SERVICE: _rules(
        {
            "POST": [
                *("2 mlflow/experiments/create", "2 mlflow/experiments/restore"),
                *("2 mlflow/runs/create", "2 mlflow/runs/update", "2 mlflow/runs/delete"),
                *("2 mlflow/runs/log-batch", "2 mlflow/runs/log-metric"),
                *("2 mlflow/runs/log-inputs", "2 mlflow/runs/outputs"),
                *("2 mlflow/logged-models", "2 mlflow/registered-models/create"),
                "2 mlflow/model-versions/create",
                *("2 mlflow-artifacts/mpu/create/**", "2 mlflow-artifacts/mpu/complete/**"),
                "2 mlflow-artifacts/mpu/abort/**",
            ],
            "PATCH": ["2 mlflow/logged-models/*"],
            "PUT": ["2 mlflow-artifacts/artifacts/**"],
            # Files of one run, of a deleted job.
            "DELETE": [
                *("2 mlflow-artifacts/artifacts/*/*/artifacts/**", "2 mlflow/logged-models/*"),
            ],
        }
    ),
}
# Requests that may name a place where MLflow reads and writes files → their harmless fields.
_FIELDS: Final = {
    "experiments/create": {"name", "tags"},
    "runs/create": {"experiment_id", "user_id", "run_name", "start_time", "tags"},
    "model-versions/create": {"name", "source", "run_id", "tags", "description", "model_id"},
    "logged-models": {"experiment_id", "name", "model_type", "source_run_id", "params", "tags"},
}
_SOURCES: Final = re.compile(r"(?:mlflow-artifacts|models|runs):/[^/?#%\\][^?#%\\]*")
_FORBIDDEN_IN_PATHS: Final = re.compile(r"(?:^|/)\.{1,2}(?:/|$)|//|[\\\0%]|^[A-Za-z][\w+.-]*:")
_ARTIFACTS: Final = "/get-artifact"


def is_allowed(method: str, path: str, query: str, access: Access) -> bool:
    """Whether this request may be sent; `path` is the decoded one, as MLflow will decode it."""
    method = "GET" if method == "HEAD" else method
    if _FORBIDDEN_IN_PATHS.search(path):
        return False
    named = (value for name, value in parse_qsl(query) if "path" in name.lower())
    if any(_FORBIDDEN_IN_PATHS.search(value) or value.startswith("/") for value in named):
        return False
    allowed = (rules.get(method) for level, rules in _ALLOWED.items() if level <= access)
    return any(rule is not None and rule.fullmatch(path) for rule in allowed)


def needs_body_check(path: str) -> bool:
    return _fields_of(path) is not None


def is_body_allowed(path: str, body: bytes) -> bool:
    """Whether no field of the body names a place outside the server's own artifacts."""
    fields = _fields_of(path)
    if fields is None:
        return True
    try:
        content = json.loads(body, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError):
        return False
    # MLflow also accepts JSON in a JSON string, and names in another case.
    if not isinstance(content, dict) or not content.keys() <= fields:
        return False
    source = content.get("source")
    return source is None or (
        isinstance(source, str)
        and _SOURCES.fullmatch(source) is not None
        and ".." not in source.split("/")
    )


def _fields_of(path: str) -> set[str] | None:
    return _FIELDS.get(path.partition("/mlflow/")[2])


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field is given twice")
    return found


def is_artifact(path: str) -> bool:
    """Whether the answer is what a user's job has written."""
    return path.endswith((_ARTIFACTS, "/artifacts/files")) or "/mlflow-artifacts/" in path
