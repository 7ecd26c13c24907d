"""What a person types for a job or a file: its id, or the first characters of it, or the name that
OpenAI's API gives to the job's model."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from service.cli.terminal.exit_codes import UsageError
from service.contract.spec import model_names
from service.contract.spec.model_names import FineTuned

Json = dict[str, Any]
Get = Callable[[str, Mapping[str, Any]], Json]

_NAMED_WHEN_SEVERAL: Final = 10


@dataclass(frozen=True)
class Kind:
    """A resource with ids of one length."""

    noun: str
    prefix: str
    digits: int
    path: str
    listing: str
    """The command that shows the ids."""
    label: str
    """The field that tells a person which one it is."""
    has_prefix_filter: bool = True
    """Whether the list can be asked for `id_prefix`; otherwise it is read from there on."""


JOB: Final = Kind("job", "job-", 32, "/v1/jobs", "finetune list", "name")
FILE: Final = Kind("file", "file-", 32, "/v1/files", "finetune files list", "filename")
SEARCH: Final = Kind(
    "search", "search-", 32, "/v1/searches", "finetune search list", "name", has_prefix_filter=False
)


def find_job(get: Get, text: str) -> str:
    """The id of the job that `text` names. UsageError, also for the name of a checkpoint: what the
    command does would be done to the whole job."""
    found = find_model(get, text)
    if found.step is not None:
        raise UsageError(
            f"{text} is the name of a checkpoint, and a job is wanted here: give {found.job_id}"
        )
    return found.job_id


def find_model(get: Get, text: str) -> FineTuned:
    """The job, and the step if `text` is the name of a checkpoint. UsageError."""
    named = model_names.parse(text.strip())
    if named is None:
        return FineTuned(find(get, JOB, text), None)
    return FineTuned(find(get, JOB, named.job_id), named.step)


def find(get: Get, kind: Kind, text: str) -> str:
    """The one id that `text` is or begins, with or without `job-`; UsageError if it is not one.

    A whole id needs no request, and may be of something that was deleted.
    """
    digits = text.strip().lower().removeprefix(kind.prefix)
    _refuse_another_kind(kind, digits)
    if not re.fullmatch(r"[0-9a-f]+", digits) or len(digits) > kind.digits:
        raise UsageError(
            f"{text!r} is not the id of a {kind.noun}, nor the beginning of one; "
            f"`{kind.listing}` shows them"
        )
    start = kind.prefix + digits
    if len(digits) == kind.digits:
        return start
    page = get(kind.path, {**_from(kind, start), "limit": _NAMED_WHEN_SEVERAL})
    found = [item for item in page["data"] if _is_one(kind, start, item["id"])]
    if len(found) == 1:
        return str(found[0]["id"])
    if not found:
        raise UsageError(f"no {kind.noun} has an id that begins with {start}; see `{kind.listing}`")
    raise UsageError(_several(kind, start, found, more=page["has_more"]))


def _refuse_another_kind(kind: Kind, text: str) -> None:
    """UsageError for a search where a job is wanted, and the other way round."""
    if kind is JOB and text.startswith(SEARCH.prefix):
        raise UsageError(
            f"{text} is a search, and a job is wanted here: `finetune search trials {text}` shows "
            "the jobs of its trials, and `finetune search --help` what can be done to a search"
        )
    if kind is SEARCH and text.startswith(JOB.prefix):
        raise UsageError(
            f"{text} is a job, and a search is wanted here; `{kind.listing}` shows them"
        )


def _from(kind: Kind, start: str) -> Json:
    """Parameters of the list: its first items are those that begin with `start`, if any do."""
    if kind.has_prefix_filter:
        return {"id_prefix": start}
    return {"after": start.ljust(len(kind.prefix) + kind.digits, "f")}  # the newest come first


def _is_one(kind: Kind, start: str, item_id: str) -> bool:
    """Whether it has the form of an id: commands make file names of it."""
    digits = item_id.removeprefix(kind.prefix)
    return item_id.startswith(start) and re.fullmatch(r"[0-9a-f]{1,36}", digits) is not None


def _several(kind: Kind, start: str, found: list[Json], *, more: bool) -> str:
    plural = "searches" if kind is SEARCH else f"{kind.noun}s"
    lines = [f"  {item['id']}  {item.get(kind.label) or ''}".rstrip() for item in found]
    return "\n".join(
        [
            f"the ids of several {plural} begin with {start}; give more characters:",
            *lines,
            *(["  …"] if more else []),
        ]
    )


def in_spec(job_id: Callable[[str], str], spec: Json) -> Json:
    """The spec, or a patch of one, with complete ids in `model.job` and
    `training.resume_from.job`."""
    for path in (("model", "job"), ("training", "resume_from", "job")):
        spec = _replaced(spec, job_id, *path)
    return spec


def _replaced(value: Any, job_id: Callable[[str], str], *path: str) -> Any:
    """A copy with the id at `path` completed; what has none, or a wrong value there, as it is."""
    if not path:
        return job_id(value) if isinstance(value, str) else value
    name, *rest = path
    if not isinstance(value, dict) or name not in value:
        return value
    return {**value, name: _replaced(value[name], job_id, *rest)}
