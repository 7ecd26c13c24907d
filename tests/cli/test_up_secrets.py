"""What another process of the same user finds out about a running `finetune up`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from service import inherited_secrets
from tests.cli.up_process import COMMAND, Up
from tests.support import unprivileged
from tests.support.processes import is_alive
from tests.support.services import wait_until

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="Linux only")]

SECRETS = {
    "FINETUNE_HUB_TOKEN": "hf_attack1",
    "PGPASSWORD": "attack2",
    "MLFLOW_TRACKING_PASSWORD": "attack3",
    "MY_PLUGIN_KEY": "attack4",
    "WANDB_API_KEY": "attack5",
}
_READER = """
import json, os
found = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    shown = {}
    for name, size in (("environ", -1), ("cmdline", -1), ("mem", 0)):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                shown[name] = file.read(size).decode(errors="replace")
        except OSError:
            shown[name] = None
    found[pid] = shown
print(json.dumps(found))
"""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Up]:
    variables = {**SECRETS, "FINETUNE_STAGE_ENV": "MY_PLUGIN_KEY"}
    up = Up(tmp_path / "home", command=[*unprivileged.prefix(), *COMMAND], env=variables)
    yield up
    up.process.terminate()
    up.wait_end()


def seen_by_another() -> dict[int, dict[str, str | None]]:
    """What a process of the same user reads of every process: None is what it cannot."""
    command = [*unprivileged.prefix(), sys.executable, "-I", "-c", _READER]
    done = subprocess.run(command, capture_output=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return {int(pid): shown for pid, shown in found.items()}


def test_no_secret_and_no_memory_is_seen_and_a_kill_leaves_nothing(stack: Up) -> None:
    """The attack: the Hub token and the broker's password from `/proc/<worker>/environ`."""
    stack.wait_ready()
    password = (stack.home / "valkey" / "valkey.conf").read_text().split("requirepass ")[1].split()
    seen = seen_by_another()
    for secret in (*SECRETS.values(), password[0]):
        assert [pid for pid, shown in seen.items() if secret in str(shown)] == []
    family = [psutil.Process(stack.process.pid), *stack.family()]
    ours = [process for process in family if _is_ours(process)]
    assert len(ours) >= 6  # `up` twice, API, reconciler, the worker and its pool
    for process in ours:
        assert (seen[process.pid]["environ"], seen[process.pid]["mem"]) == (None, None)
    # It does read what is open: MLflow's, in which there is no secret.
    tracking = [process for process in family if "mlflow" in " ".join(process.cmdline())]
    assert ["PATH=" in str(seen[process.pid]["environ"]) for process in tracking].count(True) > 0

    # Their marks are found all the same.
    manager = stack.manager()
    manager.send_signal(signal.SIGSTOP)
    manager.kill()
    stack.process.kill()
    wait_until(lambda: not [process for process in family if is_alive(process)], 30, "their end")


def _is_ours(process: psutil.Process) -> bool:
    line = " ".join(process.cmdline())
    return any(part in line for part in ("service.cli", "-m worker --queues"))


def test_the_worker_has_its_secrets_all_the_same(tmp_path: Path) -> None:
    program = (
        "import os; from service import inherited_secrets, process_start\n"
        "process_start.begin()\n"
        "from service.settings import get_settings\n"
        "print(get_settings().hub_token.get_secret_value(), os.environ['PGPASSWORD'],"
        " 'FINETUNE_HUB_TOKEN' in os.environ, inherited_secrets.VARIABLE in os.environ)"
    )
    given = {k: v for k, v in os.environ.items() if not k.startswith("FINETUNE_")}
    with inherited_secrets.pipe(SECRETS) as (variables, descriptors):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**given, **variables, "FINETUNE_HOME": str(tmp_path)},
            pass_fds=descriptors,
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.split() == ["hf_attack1", "attack2", "False", "False"]
