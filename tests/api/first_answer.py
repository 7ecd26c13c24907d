"""A new interpreter that starts the API, is asked once, and stops."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.services import free_port

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
