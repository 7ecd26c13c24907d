"""`.ci/run`, with stubs in place of what it calls."""

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.processes import is_alive
from tests.support.services import wait_until

SCRIPT = Path(__file__).parents[2] / ".ci/run"
# A part that CI runs in the background starts another process and says its id.
MAKE = """#!/usr/bin/env bash
case "$*" in
*test_optimizers*) [ "$SLOW" = torchao ] || exit 0 ;;
lint) [ "$SLOW" = lint ] || exit 0 ;;
test*)
    until [ -s "$PIDS" ]; do sleep 0.01; done
    exit 7
    ;;
*) exit 0 ;;
esac
sleep 60 &
echo $! >"$PIDS"
wait
"""
FINETUNE = """#!/usr/bin/env bash
echo report >"$3/doctor-report.md"
[ "$SLOW" = torchao ] && exit 0
until [ -s "$PIDS" ]; do sleep 0.01; done
exit 1
"""


@pytest.mark.parametrize(("slow", "status"), [("torchao", 7), ("lint", 1)])
def test_what_fails_leaves_nothing_in_the_background(
    tmp_path: Path, slow: str, status: int
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(SCRIPT, tmp_path / ".ci/run")
    for path, text in (
        ("bin/make", MAKE),
        (".venv/bin/finetune", FINETUNE),
        (".venv/bin/python", "#!/bin/sh\n"),
    ):
        program = tmp_path / path
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    pids = tmp_path / "pids"
    environment = {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "TMPDIR": str(tmp_path),
        "SLOW": slow,
        "PIDS": str(pids),
    }
    done = subprocess.run(
        [tmp_path / ".ci/run"], env=environment, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout.count("report\n") == 1
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(int(pids.read_text()))
        try:
            wait_until(lambda: not is_alive(started), 5, "its end")
        finally:
            started.kill()
