"""Checks that SQLite and file locks work under FINETUNE_HOME."""

import fcntl
import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Final

import psutil

from service.settings import Settings
from worker.doctor.check import Context, Finding, failed, ok, warning

# Network file systems: SQLite's write-ahead log and locks do not work across machines.
_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "lustre", "ceph"})


def home(_: Context) -> Finding:
    folder = Settings().home
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="doctor-", dir=folder) as own:
            fault = _sqlite_fault(Path(own)) or _lock_fault(Path(own))
    except OSError as error:
        return failed(
            "FINETUNE_HOME is not writable",
            reason=f"{error.strerror}: {folder}",
            remedy="Make this user its owner (`chown`), or set FINETUNE_HOME to another folder.",
        )
    if fault:
        return failed(
            "FINETUNE_HOME has no working file locks",
            reason=fault,
            remedy="Put FINETUNE_HOME on a local disk, or set FINETUNE_DATABASE_URL to a Postgres "
            "database if only SQLite fails.",
        )
    kind = _file_system(folder)
    if kind in _NETWORK and Settings().database_url is None:
        return warning(
            f"FINETUNE_HOME is on {kind}, and so is the SQLite database",
            reason="SQLite's write-ahead log is not safe on a file system shared by machines.",
            remedy="Set FINETUNE_DATABASE_URL to a Postgres database, or use a local disk.",
            file_system=kind,
        )
    return ok(f"FINETUNE_HOME ({kind}): SQLite and file locks work", file_system=kind)


def _sqlite_fault(folder: Path) -> str:
    """Two connections, as in two processes: the second must not write while the first does."""
    file = folder / "probe.db"
    try:
        with (
            closing(sqlite3.connect(file, isolation_level=None)) as first,
            closing(sqlite3.connect(file, isolation_level=None, timeout=0.05)) as second,
        ):
            (mode,) = first.execute("PRAGMA journal_mode=WAL").fetchone()
            if mode != "wal":
                return f"SQLite cannot keep a write-ahead log there (journal mode {mode})."
            first.execute("CREATE TABLE numbers (number INTEGER)")
            first.execute("BEGIN IMMEDIATE")
            try:
                second.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                first.execute("INSERT INTO numbers VALUES (1)")
                first.execute("COMMIT")
                return ""
            return "Two SQLite connections could write at the same time."
    except sqlite3.Error as error:
        return f"SQLite: {error}"


def _lock_fault(folder: Path) -> str:
    """Two descriptors, as in two processes: the second must not acquire the lock."""
    file = folder / "probe.lock"
    with file.open("w") as first, file.open("w") as second:
        try:
            for descriptor in (first, second):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return ""
        except OSError as error:
            return f"flock: {error.strerror}."
        return "Two descriptors could hold the same file lock."


def _file_system(folder: Path) -> str:
    """The kernel's name for it (`ext4`, `nfs4`, …), or `unknown`."""
    real = Path(os.path.realpath(folder))
    above = [p for p in psutil.disk_partitions(all=True) if real.is_relative_to(p.mountpoint)]
    # Of two mounts at the same place the later one counts.
    nearest = sorted(above, key=lambda p: len(p.mountpoint))[-1:]
    return nearest[0].fstype if nearest else "unknown"
