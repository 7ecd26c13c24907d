"""Attacks the running services from within, as `make containers` does after its job."""

import json
from typing import Any, Final

from tests.containers.engines import Engine
from worker.sandbox import landlock

RUNNING: Final = ("postgres", "redis", "mlflow", "api", "reconciler", "worker")
DATABASES: Final = {"mlflow": ("mlflow",), "finetune": ("api", "reconciler", "worker")}

# For images without Python as well.
_CONFINED = """
id -u
grep -E '^(CapEff|CapPrm|NoNewPrivs):' /proc/self/status
for file in /attack /etc/attack /usr/bin/attack /var/lib/attack; do
    touch $file 2> /dev/null && echo "wrote $file"
done
true
"""

_TRIES = """
import json, os, socket
from pathlib import Path

def tried(attempt):
    try:
        return str(attempt())
    except BaseException as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]

def reach(host, port):
    return tried(lambda: socket.create_connection((host, port), 5).close() or "reached")
"""

_DATABASE = """
import psycopg

def query(database, statement):
    address = f"host=postgres user=NAME dbname={database} passfile=/var/lib/NAME-secrets/pgpass"
    def run():
        with psycopg.connect(address, connect_timeout=5, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchone() if cursor.description else "done"
    return tried(run)

print(json.dumps({
    "own": query("NAME", "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"),
    "other": query("OTHER", "SELECT 1"),
    "postgres": query("postgres", "SELECT 1"),
    "role": query("NAME", "CREATE ROLE attacker SUPERUSER"),
    "promoted": query("NAME", "ALTER ROLE NAME SUPERUSER"),
    "program": query("NAME", "COPY (SELECT 1) TO PROGRAM 'id'"),
    "file": query("NAME", "SELECT pg_read_file('/var/lib/postgres-secrets/postgres-password')"),
    "secrets": {
        folder: sorted(os.listdir(folder))
        for folder in ("/var/lib/finetune-secrets", "/var/lib/mlflow-secrets",
                       "/var/lib/postgres-secrets")
    },
    "redis": reach("redis", 6379),
    "root": tried(lambda: os.setuid(0)),
}))
"""

_STAGE = """
from service.settings import get_settings
from worker.sandbox import confinement, landlock, layers, machine
from worker.sandbox.view import View

used = layers.used(get_settings())
abi = landlock.version()
view = View(used, read=tuple(machine.readable(dict(os.environ))), write=(Path("/tmp"),))
confinement.enter(view)
print(json.dumps({
    "layers": used,
    "abi": abi,
    "password": tried(lambda: Path("/var/lib/finetune-secrets/pgpass").read_text()),
    "token": tried(lambda: Path("/var/lib/finetune-secrets/mlflow-token").read_text()),
    "jobs": tried(lambda: os.listdir("/var/lib/finetune")),
    "environment": tried(lambda: Path("/proc/1/environ").read_bytes()),
    "postgres": reach("postgres", 5432),
    "redis": reach("redis", 6379),
    "mlflow": reach("mlflow", 5000),
}))
"""

_PROCESSES = """
import signal
children, refused = [], False
while len(children) < 3000:
    try:
        child = os.fork()
    except BlockingIOError:
        refused = True
        break
    if child == 0:
        signal.pause()
    children.append(child)
for child in children:
    os.kill(child, signal.SIGKILL)
for child in children:
    os.waitpid(child, 0)
print(json.dumps([refused, len(children)]))
"""

_MEMORY = """
child = os.fork()
if child == 0:
    held = [b"x" * 2**20 for _ in range(MIB)]
    os._exit(0)
print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
"""


def attack(engine: Engine, memory_mib: int) -> None:
    """AssertionError for an attack that works. `memory_mib`: the limit of the API's container."""
    for service in RUNNING:
        _check_confined(engine, service)
    for name, services in DATABASES.items():
        for service in services:
            _check_database(engine, service, name)
    _check_stage(engine)
    _check_limits(engine, memory_mib)
    print("attacks: every one was refused", flush=True)


def _answer(engine: Engine, service: str, code: str) -> Any:
    # Libraries may have logged something before.
    return json.loads(engine.exec(service, "python", "-c", _TRIES + code).splitlines()[-1])


def _check_confined(engine: Engine, service: str) -> None:
    user, *lines = engine.exec(service, "sh", "-c", _CONFINED).splitlines()
    found = dict(line.split(":\t") for line in lines if ":\t" in line)
    assert user != "0", f"{service} runs as root"
    assert found == {"CapEff": "0" * 16, "CapPrm": "0" * 16, "NoNewPrivs": "1"}, (service, found)
    assert not [line for line in lines if line.startswith("wrote")], (service, lines)


def _check_database(engine: Engine, service: str, name: str) -> None:
    """The role has its own database, and no way to the other's, to a file or to a program."""
    other = "finetune" if name == "mlflow" else "mlflow"
    found = _answer(engine, service, _DATABASE.replace("NAME", name).replace("OTHER", other))
    assert found["own"] == "(False,)", (service, found)
    for attempt in ("other", "postgres", "role", "promoted", "program", "file"):
        refused = any(words in found[attempt] for words in ("permission denied", "must be"))
        assert refused, (service, attempt, found[attempt])
    mounted = f"/var/lib/{name}-secrets"
    for folder, names in found["secrets"].items():
        expected = ["mlflow-token", "pgpass"] if folder == mounted else []
        assert names == expected, (service, folder, names)
    assert (found["redis"] == "reached") == (service != "mlflow"), (service, found["redis"])
    assert found["root"].startswith("PermissionError"), (service, found["root"])


def _check_limits(engine: Engine, memory_mib: int) -> None:
    refused, count = _answer(engine, "reconciler", _PROCESSES)
    assert refused, f"{count} processes in a container of 512"
    assert count < 512
    status = _answer(engine, "reconciler", _MEMORY.replace("MIB", str(2 * memory_mib)))
    assert status == -9, f"{2 * memory_mib} MiB in a container of {memory_mib}: {status}"


def _check_stage(engine: Engine) -> None:
    """What a stage's process sees in the worker's container."""
    found = _answer(engine, "worker", _STAGE)
    assert found["abi"] == landlock.version(), "the engine's seccomp profile hides Landlock"
    print(f"a stage is confined by {', '.join(found['layers'])}; Landlock {found['abi']}")
    for name in ("password", "token", "jobs", "environment", "postgres", "redis", "mlflow"):
        assert "Error" in found[name], (name, found[name])
