"""Retention by age and by size: workspaces of ended jobs, uploads and prepared data.

Never what a job that has not ended needs; and nothing goes within an hour of its last use, so that
a file that was just uploaded is there for the job that is about to name it.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from service.contract.stage import prepared_data, project_cache
from service.errors import UploadInUseError, UploadNotFoundError
from service.jobs import disk_space, removal
from service.jobs.background_loop import BackgroundLoop
from service.settings import Settings
from service.store import removals
from service.store.database import Database, clock
from service.store.files import files, retention, uploads
from service.store.files.retention import EndedJob
from service.store.interactive import prediction_claims, preview_claims
from service.store.projects import audit, quotas, usage
from service.store.scope import EVERYTHING
from service.store.webhooks import deliveries
from service.system import locked_folder

log = structlog.get_logger(__name__)

GRACE_SECONDS: Final = 3600.0
_DAY: Final = 86400.0
_BATCH: Final = 500
_PRUNED: Final = ".pruned"
_PARTIAL: Final = ".tmp"


@dataclass(frozen=True)
class Limits:
    """How long and how much of a kind is kept. None: without limit."""

    seconds: float | None
    bytes: int | None

    @classmethod
    def from_days(cls, days: float | None, size: int | None) -> "Limits":
        return cls(None if days is None else days * _DAY, size)

    @property
    def are_set(self) -> bool:
        return self.seconds is not None or self.bytes is not None


@dataclass(frozen=True)
class Item:
    key: str
    idle_seconds: float
    bytes: int


def prune(items: Iterable[Item], limits: Limits, remove: Callable[[Item], bool]) -> list[str]:
    """Remove what is too old, then what is too much, the longest idle first. Returns the keys of
    the removed items.

    `remove` returns whether the item could be removed; if it is needed, the next one is removed
    instead. Items that are too young to be removed count for the size, too.
    """
    oldest_first = sorted(items, key=lambda item: -item.idle_seconds)
    total = sum(item.bytes for item in oldest_first)
    removed = []
    for item in oldest_first:
        too_old = limits.seconds is not None and item.idle_seconds > limits.seconds
        too_much = limits.bytes is not None and total > limits.bytes
        if item.idle_seconds >= GRACE_SECONDS and (too_old or too_much) and remove(item):
            total -= item.bytes
            removed.append(item.key)
    return removed


class Retention(BackgroundLoop):
    name = "retention"

    def __init__(self, database: Database, settings: Settings) -> None:
        super().__init__(settings.retention_sweep_seconds)
        self._database = database
        self._settings = settings
        self._sizes: dict[EndedJob, int] = {}

    def step(self) -> None:
        """All kinds once; first the folders that earlier runs scheduled for removal."""
        with self._database.read() as session:
            scheduled_removals = removals.due(session, _BATCH)
        removal.remove_paths(self._database, self._settings.home, scheduled_removals)
        self._account()
        self._prune_workspaces()
        self._remove_expired_files()
        self._expire_uploads()
        self._prune_uploads()
        self._prune_prepared("prepared data", prepared_data.FOLDER)
        self._prune_prepared("compiled code", prepared_data.COMPILED)
        self._prune_prepared("reference values", prepared_data.REFERENCE)
        disk_space.make_reserve(self._settings)

    def _account(self) -> None:
        """Note what projects store, and forget what is old: entries of the audit log, previews,
        predictions, deliveries of webhooks."""
        with self._database.write() as session:
            stored = quotas.stored_by_project(session, EVERYTHING)
            usage.note_bytes(session, stored, clock(session))
            audit.forget(session, self._settings.audit_days)
            preview_claims.LEASES.forget(session)
            prediction_claims.LEASES.forget(session)
            deliveries.forget(session)

    # ---- workspaces ---------------------------------------------------------------------------

    def _prune_workspaces(self) -> None:
        given = self._settings
        limits = Limits.from_days(given.retention_workspace_days, given.retention_workspace_bytes)
        if not limits.are_set:
            return
        with self._database.read() as session:
            now = clock(session)
            ended = {job.id: job for job in retention.ended_jobs(session)}
        if limits.bytes is not None:
            self._sizes = {job: self._size(job) for job in ended.values()}
        items = [
            Item(job.id, (now - job.ended_at).total_seconds(), self._sizes.get(job, 0))
            for job in ended.values()
        ]
        _log_removed(
            "workspace", prune(items, limits, lambda item: self._remove_workspace(ended[item.key]))
        )

    def _size(self, job: EndedJob) -> int:
        """Measured once after each end: nothing writes there any more."""
        known = self._sizes.get(job)
        return (
            _tree_bytes(self._settings.workspace(job.id) / "attempts") if known is None else known
        )

    def _remove_workspace(self, job: EndedJob) -> bool:
        with self._database.write() as session:
            folders = retention.prune_workspace(session, job)
        removal.remove_paths(self._database, self._settings.home, folders)
        return bool(folders)

    # ---- uploads ------------------------------------------------------------------------------

    def _prune_uploads(self) -> None:
        given = self._settings
        limits = Limits.from_days(given.retention_upload_days, given.retention_upload_bytes)
        if not limits.are_set:
            return
        with self._database.read() as session:
            now = clock(session)
            items = [
                Item(upload.id, (now - upload.used_at).total_seconds(), upload.bytes)
                for upload in retention.uploads(session)
            ]
        _log_removed("upload", prune(items, limits, self._remove_upload))

    def _remove_upload(self, item: Item) -> bool:
        try:
            with self._database.write() as session:
                path = files.remove(session, EVERYTHING, item.key)
        except UploadInUseError:
            return False
        except UploadNotFoundError:
            return True
        removal.remove_paths(self._database, self._settings.home, [path])
        return True

    def _remove_expired_files(self) -> None:
        with self._database.read() as session:
            expired = files.expired(session, EVERYTHING)
        removed = []
        for file_id in expired:
            with self._database.write() as session:
                path = files.remove_expired(session, EVERYTHING, file_id)
            if path is not None:
                removal.remove_paths(self._database, self._settings.home, [path])
                removed.append(file_id)
        _log_removed("expired file", removed)

    def _expire_uploads(self) -> None:
        """End the uploads in parts that have expired, but none that is being completed."""
        with self._database.read() as session:
            expired = uploads.expired(session, EVERYTHING)
        removed = []
        for upload_id in expired:
            with locked_folder.if_free(self._settings.uploads_dir / upload_id) as is_free:
                if not is_free:
                    continue
                with self._database.write() as session:
                    path = uploads.expire(session, EVERYTHING, upload_id)
            removal.remove_paths(self._database, self._settings.home, [path])
            removed.append(upload_id)
        _log_removed("expired upload", removed)
        with self._database.write() as session:
            uploads.forget(session, EVERYTHING)

    # ---- prepared data ------------------------------------------------------------------------

    def _prune_prepared(self, what: str, folder: str) -> None:
        given = self._settings
        limits = Limits.from_days(given.retention_prepared_days, given.retention_prepared_bytes)
        if not limits.are_set:
            return
        items: list[Item] = []
        for cache in project_cache.all_in(given.cache_dir):
            try:
                items += _entries(cache / folder, given.cache_dir)
            except OSError as error:  # a stage has put something else in place of a lock
                log.warning("retention.cache_unreadable", folder=folder, error=str(error))
        remove = self._remove_prepared
        _log_removed(what, prune(items, limits, lambda item: remove(given.cache_dir / item.key)))

    def _remove_prepared(self, entry: Path) -> bool:
        """Renamed first, so that no retry and no `prepare` finds it, then removed."""
        root, key = entry.parent, entry.name
        aside = root / f"{key}{_PRUNED}"
        with prepared_data.locked_if_free(root, key) as free:
            if not free:
                return False
            with self._database.write() as session:
                retention.lock_products(session)
                if key in retention.prepared_in_use(session):
                    return False
                began = retention.first_running_prepare(session)
                running = (clock(session) - began).total_seconds() if began else 0.0
                # What a running `prepare` has found is not in its job's row yet. Two lengths of
                # time, each by one clock: of the database, and of the file system.
                if prepared_data.idle_seconds(root, key) < running + GRACE_SECONDS:
                    return False
                entry.rename(aside)
        removal.remove_tree(aside)
        return True


def _entries(root: Path, cache_dir: Path) -> list[Item]:
    """Their keys are paths below `cache_dir`."""
    if not root.is_dir():
        return []
    _remove_leftovers(root)
    return [
        Item(
            str(entry.relative_to(cache_dir)),
            prepared_data.idle_seconds(root, entry.name),
            _tree_bytes(entry),
        )
        for entry in root.iterdir()
        if entry.is_dir() and not entry.suffix
    ]


def _remove_leftovers(root: Path) -> None:
    """Remove folders that were renamed but not removed, and those that a killed `prepare` left half
    built."""
    for folder in [*root.glob(f"*{_PRUNED}"), *root.glob(f"*{_PARTIAL}")]:
        with prepared_data.locked_if_free(root, folder.stem) as free:
            if free:
                removal.remove_tree(folder)


def _tree_bytes(folder: Path) -> int:
    """Bytes of all files under `folder`, links not followed; files that vanish meanwhile count
    0."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(where, name).lstat().st_size
            except FileNotFoundError:
                continue
    return total


def _log_removed(what: str, ids: list[str]) -> None:
    if ids:
        log.info("retention.removed", what=what, count=len(ids), ids=ids[:20])
