"""The secrets of `finetune up` reach the worker; that nobody else reads them: test_up.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.system import inherited_secrets
from tests.cli.servers.up_process import SECRETS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


@pytest.mark.usefixtures("processes")
def test_the_worker_has_its_secrets_all_the_same(tmp_path: Path) -> None:
    program = (
        "import os; from service import process_start\n"
        "from service.system import inherited_secrets\n"
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
