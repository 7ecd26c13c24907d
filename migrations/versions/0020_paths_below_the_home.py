"""results of `prepare` name files by their place below the home, which may be moved or copied

Until now they held absolute paths. A migration does not know the home, but the prepared rows are in
`<home>/cache/`. A path that does not begin with that home stays as it is, and is never used: its
job is prepared again.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision: str = "0020"
down_revision: str | None = "0019"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_JOBS = sa.table("jobs", sa.column("id", sa.String), sa.column("results", sa.JSON))
_PATHS = {
    None: ("prepared_dir", "model_dir", "tokenizer_dir"),
    "base_job": ("folder", "finished"),
    "resume_source": ("folder",),
}
_AT_ONCE = 500


def upgrade() -> None:
    connection = op.get_bind()
    for job_id, results in _jobs(connection):
        prepared = results.get("prepare") or {}
        home = _home(prepared)
        if home is not None:
            changed = {**results, "prepare": _below(prepared, home)}
            connection.execute(sa.update(_JOBS).where(_JOBS.c.id == job_id).values(results=changed))


def downgrade() -> None:
    """The keys stay: an earlier release fails such a job at `train`, and a clone runs."""


def _jobs(connection: sa.Connection) -> Iterator[tuple[str, dict[str, Any]]]:
    after = ""
    while True:
        page = sa.select(_JOBS).where(_JOBS.c.id > after).order_by(_JOBS.c.id).limit(_AT_ONCE)
        rows = connection.execute(page).all()
        if not rows:
            return
        yield from ((row.id, row.results or {}) for row in rows)
        after = rows[-1].id


def _home(prepared: dict[str, Any]) -> str | None:
    home, found, _ = str(prepared.get("prepared_dir", "")).rpartition("/cache/")
    return f"{home}/" if found else None


def _below(prepared: dict[str, Any], home: str) -> dict[str, Any]:
    changed = dict(prepared)
    for section, names in _PATHS.items():
        part = changed if section is None else dict(changed.get(section) or {})
        part |= {n: part[n].removeprefix(home) for n in names if isinstance(part.get(n), str)}
        if section is not None and part:
            changed[section] = part
    return changed
