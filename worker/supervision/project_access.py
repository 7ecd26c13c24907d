"""What a job is given of its project: the Hub token that it may use, and room for its files."""

from pydantic import SecretStr
from sqlalchemy.orm import Session

from service.contract.failures import FailureCode, StageError
from service.contract.states import Stage
from service.settings import Settings
from service.store.database import Database
from service.store.jobs.claims import Claim
from service.store.projects import quotas, secrets
from service.store.scope import Scope
from service.store.tables.projects import DEFAULT_PROJECT
from service.system.secret_box import SecretBox, SecretUnreadableError


def settings_for(database: Database, settings: Settings, claim: Claim) -> Settings:
    """The worker's settings with the token that the job may use: its own, or else the operator's
    for a job of the default project. Raises StageError: secret_unavailable, or quota_exceeded if
    the stage may not begin."""
    with database.read() as session:
        allowed = _with_token(session, settings, claim)
        _require_room(session, claim)
    return allowed


def without_secret(settings: Settings, project_id: str) -> Settings:
    """The operator's Hub token is for the default project alone."""
    if project_id == DEFAULT_PROJECT:
        return settings
    return settings.model_copy(update={"hub_token": None})


def _with_token(session: Session, settings: Settings, claim: Claim) -> Settings:
    name = claim.spec.hub_token_secret
    if name is None:
        return without_secret(settings, claim.project_id)
    hub = claim.spec.hub
    if claim.stage is Stage.TRAIN and not (hub is not None and hub.pushes_while_training):
        return settings
    value = _secret(session, settings, claim, name)
    return settings.model_copy(update={"hub_token": SecretStr(value)})


def _secret(session: Session, settings: Settings, claim: Claim, name: str) -> str:
    sealed = secrets.sealed(session, Scope(claim.project_id), name)
    try:
        if sealed is None:
            raise SecretUnreadableError(f"The project has no secret {name!r} any more.")
        return SecretBox(settings.secrets_file).open(claim.project_id, name, sealed)
    except SecretUnreadableError as error:
        raise StageError(FailureCode.SECRET_UNAVAILABLE, str(error), secret=name) from None


def _require_room(session: Session, claim: Claim) -> None:
    """`prepare` and `train` do not begin while the project stores more than it may; a finished
    model is published all the same."""
    if claim.stage is Stage.PUBLISH:
        return
    over = quotas.over_bytes(session, claim.project_id)
    if over is not None:
        used, limit = over
        raise StageError(
            FailureCode.QUOTA_EXCEEDED,
            f"The project stores {used:,} bytes and may store {limit:,}.",
            quota="max_bytes",
            used=used,
            limit=limit,
        )
