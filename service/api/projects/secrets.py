"""Secrets of a project: set, listed by name, deleted, and never shown."""

import re
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path

from service.api.http.dependencies import DatabaseDep, ParsedBody, SettingsDep
from service.api.http.principal import SecretsRead, SecretsWrite
from service.api.openapi.document import problems
from service.api.problems.errors import InvalidRequestError
from service.api.schemas.problems import Fault
from service.api.schemas.teams import Secret, SecretDeleted, SecretList
from service.contract.fields import patterns
from service.errors import SecretNotFoundError, SecretsKeyError
from service.store.projects import secrets
from service.system.secret_box import SecretBox, SecretUnreadableError

router = APIRouter(prefix="/v1/secrets", tags=["teams"])

_LONGEST_VALUE: Final = 16_384
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["value"],
                    "properties": {
                        "value": {
                            "type": "string",
                            "minLength": 1,
                            "maxLength": _LONGEST_VALUE,
                            "pattern": patterns.ONE_LINE,
                            "writeOnly": True,
                        }
                    },
                    "additionalProperties": False,
                }
            }
        },
    }
}
Name = Annotated[str, Path(max_length=64, description="Of the secret.", examples=["my-hub-token"])]


@router.get("", summary="List the secrets' names", responses=problems(401, 403, 422, 503))
def list_secrets(principal: SecretsRead, database: DatabaseDep) -> SecretList:
    """Names and times, never a value."""
    with database.read() as session:
        rows = secrets.list_all(session, principal.scope)
    return SecretList(data=[Secret.from_row(row) for row in rows])


@router.put(
    "/{name}",
    summary="Set a secret",
    openapi_extra=_BODY,
    responses=problems(400, 401, 403, 404, 413, 415, 422, 503),
)
def set_secret(
    principal: SecretsWrite,
    name: Name,
    body: ParsedBody,
    database: DatabaseDep,
    settings: SettingsDep,
) -> Secret:
    """Makes the secret of the key's project, or replaces its value. It is stored encrypted, given
    to the stages `prepare` and `publish` of that project's jobs that name it, and never shown.
    """
    if not re.fullmatch(patterns.SECRET_NAME, name):
        words = f"must be {patterns.WORDS[patterns.SECRET_NAME]}"
        raise InvalidRequestError([Fault(path="path.name", code="invalid_value", message=words)])
    value = _value(body)
    box = SecretBox(settings.secrets_file)
    seal = partial(box.seal, principal.project, name, value)
    try:
        with database.write() as session:
            return Secret.from_row(secrets.put(session, principal.project, name, seal))
    except (SecretUnreadableError, OSError) as error:
        raise SecretsKeyError(str(error)) from error


def _value(body: Any) -> str:
    """Errors never show what was given."""
    value = body.get("value") if isinstance(body, dict) else None
    is_text = isinstance(value, str) and len(value) <= _LONGEST_VALUE
    if not is_text or len(body) > 1 or not re.fullmatch(patterns.ONE_LINE, str(value)):
        message = (
            'the body must be {"value": "…"}: one line of 1 to '
            f"{_LONGEST_VALUE:,} characters, and no other field"
        )
        raise InvalidRequestError([Fault(path="value", code="invalid_value", message=message)])
    return str(value)


@router.delete("/{name}", summary="Delete a secret", responses=problems(401, 403, 404, 422, 503))
def delete_secret(principal: SecretsWrite, name: Name, database: DatabaseDep) -> SecretDeleted:
    """A job that names it and has not prepared or published yet ends as `secret_unavailable`; it
    can be retried once the secret is set again."""
    if not re.fullmatch(patterns.SECRET_NAME, name):
        raise SecretNotFoundError(name)
    with database.write() as session:
        secrets.remove(session, principal.own, name)
    return SecretDeleted(name=name)
