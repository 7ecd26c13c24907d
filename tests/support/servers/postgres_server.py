"""A private Postgres for tests, where none runs but its binaries are installed."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.support.servers.packages import UnavailableError, program

SYSTEM_USERS = ("postgres", "nobody")
DEBIAN_FOLDER = "usr/lib/postgresql/*/bin"


class PostgresServer:
    """A fresh server on the loopback. Postgres refuses to run as root: another user runs it."""

    def __init__(self, port: int, parent: Path | None = None) -> None:
        """`parent`: where its folder is made; by default that of temporary files."""
        self._binaries = Path(program("initdb", "postgresql", DEBIAN_FOLDER)).resolve().parent
        self._user = _system_user() if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="finetune-postgres-", dir=parent))
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        self.url = f"postgresql://tests@127.0.0.1:{port}/postgres"
        self._initialise()
        options = {"port": port, "unix_socket_directories": "", "fsync": "off"}
        self._settings = [w for name, value in options.items() for w in ("-c", f"{name}={value}")]
        self.start()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _initialise(self) -> None:
        # A temporary database on the loopback: it needs no password.
        trust = ("--username", "tests", "--auth", "trust", "--encoding", "UTF8", "--no-sync")
        if self._popen("initdb", "--pgdata", str(self._data), *trust).wait() != 0:
            log = self.log()
            shutil.rmtree(self.folder)
            raise UnavailableError(f"initdb failed: {log}")

    def _popen(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        user = self._user
        with (self.folder / "server.log").open("ab") as log:
            return subprocess.Popen(
                [str(self._binaries / name), *arguments],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                # Ctrl-C is for pytest, which then stops this server itself.
                start_new_session=True,
                user=None if user is None else user.pw_uid,
                group=None if user is None else user.pw_gid,
                extra_groups=None if user is None else [],
            )

    def start(self) -> None:
        self.process = self._popen("postgres", "-D", str(self._data), *self._settings)

    def end(self, with_signal: signal.Signals = signal.SIGINT) -> None:
        """A fast shutdown, which does not wait for clients; SIGQUIT: an immediate one, which
        recovers at the next start."""
        self.process.send_signal(with_signal)
        self.process.wait(30)

    def runs(self) -> bool:
        return self.process.poll() is None

    def log(self) -> str:
        """The end of the server's log."""
        return (self.folder / "server.log").read_text(errors="replace")[-1000:]

    def stop(self) -> None:
        """Stop the server and remove its files."""
        if self.runs():
            self.end()
        shutil.rmtree(self.folder)


def _system_user() -> pwd.struct_passwd:
    for name in SYSTEM_USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise UnavailableError(f"Postgres does not run as root, and there is no user {SYSTEM_USERS}")
