"""Who may open MLflow's pages, and what they may do there."""

from service.api import visitor as visitors
from service.api.errors import ForbiddenRouteError, UnauthorizedError
from service.api.sessions import Sessions
from service.api.single_flight import SingleFlight
from service.contract.roles import DEFAULT_PROJECT, Permission
from service.mlflow_access import Access
from service.settings import Settings
from service.store import projects
from service.store.database import Database


class MlflowVisitors:
    def __init__(self, settings: Settings, database: Database) -> None:
        self.sessions = Sessions(settings.home)
        self._database = database
        self._is_off = settings.auth == "off"
        self._accesses = SingleFlight(self._look_up)

    async def access_of(self, key: str | None) -> Access:
        """Raises UnauthorizedError."""
        if self._is_off:
            return Access.ANNOTATE
        if key is None:
            raise UnauthorizedError("Sign in at /login, or send a valid API key.")
        return await self._accesses.get(key)

    def _look_up(self, key: str) -> Access:
        with self._database.connect() as connection:
            visitor = visitors.identify(connection, key, None)
            others = projects.any_but_default(connection)
        # MLflow has no projects: whoever opens it sees the runs of all of them.
        if Permission.JOBS_READ not in visitor.permissions or not (
            visitor.is_operator or (visitor.project == DEFAULT_PROJECT and not others)
        ):
            raise ForbiddenRouteError(
                "MLflow shows the runs of all projects: while there are several, only operators "
                "can open it. The metrics of a job are at /v1/jobs/{job_id}/metrics."
            )
        may_write = Permission.JOBS_WRITE in visitor.permissions
        return Access.ANNOTATE if may_write else Access.READ
