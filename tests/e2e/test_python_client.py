"""The client's wheel in an environment of its own, which has neither torch nor the service: what
examples/python_client shows, against a running service."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.stack import BIN, Stack
from tests.support.wheels.client_wheel import build

pytestmark = [
    pytest.mark.parametrize("stack", ["sqlite-valkey"], indirect=True),
    pytest.mark.timeout(600),
    pytest.mark.long,
    pytest.mark.heavy,
]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MISSING = (
    "from importlib.util import find_spec;"
    "print([n for n in ('torch', 'service', 'worker', 'fastapi', 'celery') if find_spec(n)])"
)
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read("train.ipynb", 4)
nbformat.validate(notebook)
for cell in notebook.cells:
    cell.source = cell.source.replace(sys.argv[1], sys.argv[2])
NotebookClient(notebook, timeout=300).execute()
nbformat.write(notebook, "done.ipynb")
for cell in notebook.cells:
    for output in cell.get("outputs", []):
        print(cell.id, output.get("data", {}).get("text/html") or output.get("text"))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, processes: None) -> Path:
    """Of the environment."""
    folder = tmp_path_factory.mktemp("client")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    found = folder / "venv" / "bin" / "python"
    wheel = f"finetune-client[notebook] @ {build(folder).as_uri()}"
    install = ("-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"))
    subprocess.run([str(found), *install, wheel, "nbclient", "ipykernel"], check=True, cwd=folder)
    return found


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy, because the notebook writes into its folder."""
    for name in ("python_client", "classification"):
        shutil.copytree(EXAMPLES / name, tmp_path / "examples" / name)
    return tmp_path / "examples" / "python_client"


def run(python: Path, folder: Path, stack: Stack, *arguments: str) -> str:
    own = ("FINETUNE_", "PYTHON")
    inherited = {name: v for name, v in os.environ.items() if not name.startswith(own)}
    done = subprocess.run(
        [str(python), *arguments],
        cwd=folder,
        env=inherited | {"FINETUNE_URL": stack.url},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_script(stack: Stack, python: Path, examples: Path, tiny_model: Path) -> None:
    assert run(python, examples, stack, "-c", MISSING) == "[]\n"
    out = run(python, examples, stack, "train.py", "model", str(tiny_model))
    assert re.search(r"^job-\w+ +topics +text-classification +succeeded", out, re.MULTILINE)
    assert re.search(r"^step  loss +eval_loss  eval_accuracy$", out, re.MULTILINE)
    assert re.search(r"^90    0\.\d+ +(True|False)", out, re.MULTILINE)
    assert re.search(r"^Where is the Warsaw Uprising Museum\? \w+", out, re.MULTILINE)
    assert (examples / "model" / "model" / "model.safetensors").is_file()


def test_several_jobs_at_once(stack: Stack, python: Path, examples: Path, tiny_model: Path) -> None:
    out = run(python, examples, stack, "sweep.py", str(tiny_model))
    rates = re.findall(r"^([\d.e-]+): 0\.\d{3}$", out, re.MULTILINE)
    assert rates == ["5e-05", "0.0002", "0.001"]
    assert re.search(r"^job-\w+ is the best$", out, re.MULTILINE)


def test_a_search(stack: Stack, python: Path, examples: Path, tiny_model: Path) -> None:
    out = run(python, examples, stack, "search.py", "found", str(tiny_model))
    assert re.findall(r"^(\d) +(?:complete|pruned) ", out, re.MULTILINE) == list("012345")
    assert re.search(r"^trial \d is the best$", out, re.MULTILINE)
    assert (examples / "found" / "model" / "model.safetensors").is_file()
    assert "plotly" in (examples / "found" / "history.html").read_text()


def test_the_notebook(stack: Stack, python: Path, examples: Path, tiny_model: Path) -> None:
    out = run(python, examples, stack, "-c", EXECUTE, MODEL, str(tiny_model))
    assert "job " in out
    assert "100%" in out
    assert "metrics <table><caption>metrics</caption><thead><tr><th>step</th><th>loss</th>" in out
    assert "checkpoints <table><caption>checkpoints</caption>" in out
    assert "Warning" not in out
    assert (examples / "topics-model" / "model" / "model.safetensors").is_file()


def test_types_of_the_wheel_are_strict(stack: Stack, python: Path, examples: Path) -> None:
    """As a user checks them: from the installed package, without this project's settings."""
    mypy = (str(BIN / "mypy"), "--strict", "--config-file=", "--cache-dir=/dev/null")
    done = subprocess.run(
        [*mypy, f"--python-executable={python}", "train.py", "sweep.py", "search.py"],
        cwd=examples,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "Success: no issues found in 3 source files\n"
