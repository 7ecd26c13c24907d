"""The description that MLflow shows at the top of a run's page, in Markdown."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from service.contract import splits
from service.contract.dataset import HubDataset, UploadDataset
from service.contract.spec import JobSpec

TAG: Final = "mlflow.note.content"
_SHOWN_FILES: Final = 5


def with_link(note: str, job_id: str, public_url: str | None) -> str:
    """`public_url`: where users reach the service, if that is known.

    The link is at the top, because MLflow collapses a description after its first lines.
    """
    if public_url is None:
        return note
    plain = _job_line(_code(job_id))
    linked = _job_line(f"[{_code(job_id)}]({public_url.rstrip('/')}/v1/jobs/{job_id})")
    return note.replace(plain, linked, 1)


def write(job_id: str, spec: JobSpec, file_names: Mapping[str, str]) -> str:
    """`file_names`: uploaded file id → the name it was uploaded with."""
    lines = [
        _job_line(_code(job_id)),
        f"- Task: {_code(spec.task.type)}, mode {_code(spec.mode)}",
        f"- Model: {_code(spec.model.title)}",
        *(
            f"- Data, {split}: {_data(spec, value, file_names)}"
            for split, value in splits.given(spec.dataset).items()
        ),
    ]
    heading = [_code(spec.name), ""] if spec.name else []
    return "\n".join([*heading, *lines])


def _job_line(job: str) -> str:
    return f"- Job: {job}"


def _data(spec: JobSpec, value: Any, file_names: Mapping[str, str]) -> str:
    if isinstance(spec.dataset, HubDataset):
        return f"{_code(spec.dataset.name)}, split {_code(str(value))}"
    names = [
        file_names.get(item, item)
        if isinstance(spec.dataset, UploadDataset)
        else PurePosixPath(item).name
        for item in value
    ]
    more = len(names) - _SHOWN_FILES
    shown = ", ".join(_code(name) for name in names[:_SHOWN_FILES])
    return f"{shown} and {more} more" if more > 0 else shown


def _code(text: str) -> str:
    """As inline code: a name given by the user must not become a link or a heading."""
    return f"`{' '.join(text.replace('`', chr(39)).split())}`"
