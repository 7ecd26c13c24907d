"""The API in an interpreter of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.api.http.raw_http import LIVE, Address, send, status_of
from tests.support.servers.services import free_port, wait_until

_CODE = """
import json, sys, threading, time, urllib.request, uvicorn
from service.api.app import create_app
server = uvicorn.Server(uvicorn.Config(create_app(), port=int(sys.argv[1]), log_config=None))
thread = threading.Thread(target=server.run)
thread.start()
while not server.started:
    time.sleep(0.005)
status = urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/health/live").status
seconds = time.process_time()
server.should_exit = True
thread.join()
print(json.dumps({"status": status, "cpu_seconds": seconds, "modules": sorted(sys.modules)}))
"""


@dataclass(frozen=True)
class FirstAnswer:
    status: int
    # Of the process, from its start to its answer: what it takes on a core of its own.
    cpu_seconds: float
    # All that it had imported.
    modules: list[str]


def first_answer(home: Path) -> FirstAnswer:
    """What a new API process with this FINETUNE_HOME answers to /health/live.

    subprocess.CalledProcessError where it does not answer.
    """
    done = subprocess.run(
        [sys.executable, "-c", _CODE, str(free_port())],
        env={**os.environ, "FINETUNE_HOME": str(home), "FINETUNE_LOG_LEVEL": "WARNING"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return FirstAnswer(**json.loads(done.stdout))


@contextmanager
def api_process(
    home: Path, database_url: str, *before: str
) -> Iterator[tuple[subprocess.Popen[bytes], Address]]:
    """An open `finetune api` that answers, and its address; `before` starts the command."""
    port = free_port()
    variables = {
        "FINETUNE_HOME": str(home),
        "FINETUNE_AUTH": "off",
        "FINETUNE_DATABASE_URL": database_url,
        "FINETUNE_REDIS_URL": "redis://127.0.0.1:1/0",
        "FINETUNE_LOG_LEVEL": "ERROR",
    }
    command = [*before, sys.executable, "-m", "service.cli", "api", "--port", str(port)]
    process = subprocess.Popen(command, env={**os.environ, **variables})
    address = ("127.0.0.1", port)
    try:
        wait_until(lambda: _answers(address), 60, "the API")
        yield process, address
    finally:
        process.terminate()
        process.wait(30)


def _answers(address: Address) -> bool:
    try:
        return status_of(send(address, LIVE)) == 200
    except OSError:
        return False
