"""Who may do what: roles of keys and members, and the scopes that narrow a key."""

from enum import StrEnum
from typing import Final

DEFAULT_PROJECT: Final = "default"
"""Id and name of the project that always exists; a single user needs no other."""


class Role(StrEnum):
    """Each may do all that the ones before it may."""

    VIEWER = "viewer"
    MEMBER = "member"
    ADMIN = "admin"
    OPERATOR = "operator"

    def includes(self, other: "Role") -> bool:
        return _ORDER.index(self) >= _ORDER.index(other)


_ORDER: Final = tuple(Role)


class Permission(StrEnum):
    """What a route needs, and what `scopes` of a key are chosen from."""

    JOBS_READ = "jobs:read"
    JOBS_WRITE = "jobs:write"
    FILES_READ = "files:read"
    FILES_WRITE = "files:write"
    KEYS_ADMIN = "keys:admin"
    PROJECTS_ADMIN = "projects:admin"
    METRICS_READ = "metrics:read"
    SECRETS_READ = "secrets:read"
    SECRETS_WRITE = "secrets:write"
    AUDIT_READ = "audit:read"
    WEBHOOKS_READ = "webhooks:read"
    WEBHOOKS_WRITE = "webhooks:write"


LOWEST_ROLE: Final = {
    Permission.JOBS_READ: Role.VIEWER,
    Permission.FILES_READ: Role.VIEWER,
    Permission.JOBS_WRITE: Role.MEMBER,
    Permission.FILES_WRITE: Role.MEMBER,
    Permission.KEYS_ADMIN: Role.ADMIN,
    Permission.PROJECTS_ADMIN: Role.OPERATOR,
    Permission.METRICS_READ: Role.OPERATOR,
    Permission.SECRETS_READ: Role.VIEWER,
    Permission.SECRETS_WRITE: Role.MEMBER,
    Permission.AUDIT_READ: Role.ADMIN,
    Permission.WEBHOOKS_READ: Role.VIEWER,
    Permission.WEBHOOKS_WRITE: Role.MEMBER,
}
"""The first role that has the permission."""
