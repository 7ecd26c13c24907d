"""Who may open MLflow's pages, and what they may do there."""

from service.api.http import principal as principals
from service.api.http.accounting import sign
from service.api.http.principal import Principal
from service.api.http.single_flight import SingleFlight
from service.api.mlflow.sessions import Credential
from service.api.problems.errors import ForbiddenRouteError, UnauthorizedError
from service.contract.roles import DEFAULT_PROJECT, Permission
from service.mlflow_access import Access
from service.settings import Settings
from service.store.database import Database
from service.store.projects import audit, projects, sessions
from service.store.projects.audit import Entry


class MlflowVisitors:
    def __init__(self, settings: Settings, database: Database) -> None:
        self._database = database
        self._is_off = settings.auth == "off"
        self._accesses = SingleFlight(self._look_up)

    async def access_of(self, credential: Credential | None) -> Access:
        """Raises UnauthorizedError, ForbiddenRouteError."""
        if self._is_off:
            return Access.ANNOTATE
        if credential is None:
            raise UnauthorizedError("Sign in at /login, or send a valid API key.")
        return await self._accesses.get(credential)

    def _look_up(self, credential: Credential) -> Access:
        principal = self._identify(credential)
        return Access.ANNOTATE if Permission.JOBS_WRITE in principal.permissions else Access.READ

    def _identify(self, credential: Credential) -> Principal:
        identify = principals.identify_session if credential.is_session else principals.identify
        with self._database.connect() as connection:
            principal = identify(connection, credential.text)
            others = projects.any_but_default(connection)
        # MLflow has no projects: whoever opens it sees the runs of all of them.
        if Permission.JOBS_READ not in principal.permissions or not (
            principal.is_operator or (principal.project == DEFAULT_PROJECT and not others)
        ):
            raise ForbiddenRouteError(
                "MLflow shows the runs of all projects: while there are several, only operators "
                "can open it. The metrics of a job are at /v1/jobs/{job_id}/metrics."
            )
        return principal

    def sign_in(self, key: str, entry: Entry) -> str | None:
        """The token of a new session; None if keys are off. Raises UnauthorizedError,
        ForbiddenRouteError."""
        if self._is_off:
            return None
        principal = self._identify(Credential(key))
        sign(entry, principal)
        with self._database.write(audited=False) as session:
            entry.target, token = sessions.begin(session, str(principal.key_id))
            audit.write(session, entry)
        return token

    def sign_out(self, token: str, entry: Entry) -> None:
        """End the session of this token, if there is one, wherever copies of it are."""
        with self._database.write(audited=False) as session:
            ended = sessions.end(session, token)
            if ended is not None:
                entry.target, holder = ended
                if holder is not None:
                    sign(entry, principals.of_holder(holder))
                audit.write(session, entry)
