"""Another API beside ours, such as OpenAI's: what differs on its paths.

`create_app` hands the faces in; nothing else outside of a face's own folder knows one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from pydantic import BaseModel
from sqlalchemy.orm import Session

from service.api.schemas.files import FileObject
from service.api.schemas.problems import Problem
from service.store.scope import Scope
from service.store.tables.jobs import JobRow


class FaceErrors(Protocol):
    """How the face's clients read errors."""

    def is_face(self, path: str) -> bool:
        """Whether the path is the face's alone: its errors have only the face's shape."""

    def is_shared(self, path: str) -> bool:
        """Whether both APIs have the path: the face's shape is a member of the problem."""

    def status_of(self, status: int) -> int:
        """The status that the face answers instead of ours."""

    def envelope(self, problem: Problem) -> dict[str, Any]:
        """The problem in the face's shape."""

    def describe(self, document: dict[str, Any]) -> None:
        """Write into the OpenAPI document what the errors of the face's paths look like."""


@dataclass(frozen=True)
class DerivedFile:
    about: FileObject
    content: BinaryIO
    """At its beginning. It has no name on the disk."""


class DerivedFiles(Protocol):
    """Files that are made of rows in SQL on reading."""

    def job_of(self, file_id: str) -> str | None:
        """The id of the job whose file it is; None for another file."""

    def require(self, session: Session, scope: Scope, job_id: str) -> JobRow:
        """The job, if it has such a file. Raises UploadNotFoundError."""

    def make(self, session: Session, scope: Scope, job_id: str) -> DerivedFile:
        """To be closed by the caller. Raises UploadNotFoundError."""


@dataclass(frozen=True)
class Face:
    errors: FaceErrors
    files: DerivedFiles
    models: tuple[type[BaseModel], ...]
    """Models of bodies that no route declares, for the OpenAPI document."""


def faces_of(scope: Mapping[str, Any]) -> tuple[Face, ...]:
    """The faces of the app that answers the request with this ASGI scope."""
    state = getattr(scope.get("app"), "state", None)
    faces: tuple[Face, ...] = getattr(state, "faces", ())
    return faces
