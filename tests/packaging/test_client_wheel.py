"""`pip install ./client`: one small package that works without the service's own packages."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.wheels.client_wheel import build

ISOLATED = (
    "import sys; sys.path.insert(0, sys.argv[1]);"
    "import finetune_client as f; f.Client('http://127.0.0.1:9').close();"
    "names = {name.partition('.')[0] for name in sys.modules};"
    "print(f.__file__, sorted(names & {'torch', 'service', 'worker', 'sqlalchemy', 'tqdm'}))"
)


@pytest.mark.usefixtures("processes")
def test_carries_itself_and_asks_for_httpx_and_pydantic(tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    with zipfile.ZipFile(build(tmp_path)) as wheel:
        names = wheel.namelist()
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        asked = [
            line.split()[1].partition(">")[0]
            for line in wheel.read(metadata).decode().splitlines()
            if line.startswith("Requires-Dist") and "extra" not in line
        ]
        wheel.extractall(installed)
    assert sorted(asked) == ["httpx", "pydantic"]
    assert "finetune_client/py.typed" in names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"finetune_client"}
    done = subprocess.run(
        [sys.executable, "-I", "-c", ISOLATED, str(installed)],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split(maxsplit=1) == [
        str(installed / "finetune_client" / "__init__.py"),
        "[]\n",
    ]
