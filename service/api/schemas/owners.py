"""Projects, their members and keys."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from service.api.schemas.rows import model_from_row
from service.contract.fields import patterns
from service.contract.fields.types import Name
from service.contract.roles import Permission, Role
from service.store.tables.projects import ApiKeyRow, MemberRow, ProjectRow


def _not_like_an_id(name: str) -> str:
    if name.startswith("proj-"):
        raise ValueError("must not begin with `proj-`, as the ids of projects do")
    return name


ProjectName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=64, pattern=patterns.PROJECT_NAME),
    AfterValidator(_not_like_an_id),
]
ProjectRole = Literal[Role.VIEWER, Role.MEMBER, Role.ADMIN]
_MOST: int = 2**31 - 1
_Count = Annotated[int, Field(ge=0, le=_MOST)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Limits(_Body):
    """What a project may use. null: no limit."""

    weight: float = Field(
        1.0, gt=0, le=1e6, description="Its share of the workers, relative to other projects."
    )
    max_gpus: _Count | None = Field(None, description="GPUs that its jobs may have at once.")
    max_queued_jobs: _Count | None = None
    max_bytes: Annotated[int, Field(ge=0, le=2**62)] | None = Field(
        None, description="Of its files and its jobs' folders together."
    )
    max_requests_per_second: Annotated[float, Field(gt=0, le=1e6)] | None = None
    highest_priority: Annotated[int, Field(ge=0, le=9)] | None = Field(
        None, description="The smallest `priority` that its jobs may have."
    )


class NewProject(Limits):
    name: ProjectName = Field(examples=["search"])


class ProjectChanges(Limits):
    """The fields that are given are set; the others stay."""

    name: ProjectName | None = Field(
        None, description="A new name; MLflow keeps the first one. null: it stays."
    )
    archived: bool | None = Field(
        None, description="true: it takes no new jobs and files. null: it stays."
    )


class Project(Limits):
    id: str = Field(examples=["default"])
    name: str
    mlflow_name: str = Field(
        description="The name that it was made with: its experiments and registered models in "
        "MLflow keep it."
    )
    created_at: datetime
    archived_at: datetime | None

    @classmethod
    def from_row(cls, row: ProjectRow) -> Self:
        return model_from_row(cls, row)


class ProjectList(BaseModel):
    data: list[Project]


class NewMember(_Body):
    name: Name = Field(examples=["ada@example.com"])
    role: ProjectRole = Role.MEMBER


class MemberChanges(_Body):
    role: ProjectRole


class Member(BaseModel):
    id: str
    project: str
    name: str
    role: Role
    created_at: datetime

    @classmethod
    def from_row(cls, row: MemberRow) -> Self:
        return model_from_row(cls, row, project=row.project_id)


class MemberList(BaseModel):
    data: list[Member]


class MemberRemoved(BaseModel):
    id: str
    removed: Literal[True] = True
    revoked_keys: list[str] = Field(description="Ids of the keys that the member had.")


class NewKey(_Body):
    name: Name = Field(description="Who or what will use it.", examples=["ci"])
    role: ProjectRole = Role.MEMBER
    member: Name | None = Field(
        None, description="Name or id of the member whose key it is; it can do no more than they."
    )
    scopes: list[Permission] | None = Field(
        None, max_length=len(Permission), description="null: all that the role may do."
    )
    expires_in_seconds: Annotated[int, Field(ge=1, le=_MOST)] | None = Field(
        None, description="null: it works until it is revoked."
    )


class Rotation(_Body):
    grace_seconds: Annotated[int, Field(ge=0, le=_MOST)] = Field(
        86400, description="How long the old key works on."
    )


class ApiKey(BaseModel):
    id: str
    project: str | None = Field(description="null: an operator's key.")
    name: str
    role: Role
    member: str | None = Field(description="Id of the member whose key it is.")
    scopes: list[Permission] | None = Field(description="null: all that the role may do.")
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")
    revoked_at: datetime | None

    @classmethod
    def from_row(cls, row: ApiKeyRow, **others: Any) -> Self:
        return model_from_row(cls, row, project=row.project_id, member=row.member_id, **others)


class ApiKeyList(BaseModel):
    data: list[ApiKey]


class ApiKeyMade(ApiKey):
    key: str = Field(description="Shown this once: only its hash is kept.")


class Me(BaseModel):
    """Who sends the request, and what the key allows."""

    key_id: str | None = Field(description="null: the service needs no key.")
    key_name: str | None
    role: Role
    project: str | None = Field(description="null: all projects.")
    makes_in: str = Field(description="Id of the project that owns what this key makes.")
    member: str | None = Field(description="Id of the member whose key it is.")
    permissions: list[Permission]
    expires_at: datetime | None
