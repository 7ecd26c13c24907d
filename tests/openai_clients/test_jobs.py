"""The whole life of jobs on a running service, with its own worker, through unmodified clients. A
short one, for each change: tests/e2e/test_openai_client.py."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import Stack, running
from tests.openai_clients.releases import EACH, Release
from tests.openai_clients.scripts import jobs
from tests.support.models import save_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama", positions=1024)


EXAMPLES = Path(__file__).parents[2] / "examples" / "openai_client"


@pytest.fixture(scope="module", params=["sqlite-valkey", "postgres-redis"])
def stack(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    model: Path,
    mlflow_uri: str,
) -> Iterator[Stack]:
    variables = {
        "FINETUNE_MLFLOW_URI": mlflow_uri,
        "FINETUNE_MODEL_ROOTS": str(model.parent),
        "FINETUNE_WEBHOOK_ALLOW": "127.0.0.1",
    }
    with running(tmp_path_factory.mktemp(request.param), request.param, variables) as stack:
        yield stack


@pytest.mark.heavy
@pytest.mark.parametrize("release", EACH)
def test_whole(release: Release, stack: Stack, model: Path) -> None:
    release.run("jobs", stack.url, str(model), model.name, "whole", seconds=900)


def conversations() -> list[Any]:
    return rows_of("chat-train")


def pairs() -> list[Any]:
    """In the form that OpenAI has for them."""
    return [
        {
            "input": {"messages": [{"role": "user", "content": row["prompt"]}]},
            "preferred_output": [{"role": "assistant", "content": row["chosen"]}],
            "non_preferred_output": [{"role": "assistant", "content": row["rejected"]}],
        }
        for row in rows_of("preferences-train")
    ]


def rows_of(name: str) -> list[Any]:
    """The shortest of the real rows, so that a tiny model has room for whole ones."""
    found = (EXAMPLES.parent / "gsm8k" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in sorted(found, key=len)[:16]]


ROWS = {"supervised": conversations, "dpo": pairs}


def printed(stack: Stack, example: str, *arguments: str, seconds: float) -> str:
    """What the example says."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{example}.py"), *arguments],
        env={**os.environ, "OPENAI_BASE_URL": f"{stack.url}/v1", "OPENAI_API_KEY": "none"},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.heavy
@pytest.mark.parametrize("method", ROWS)
def test_example(method: str, stack: Stack, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(jobs.lines(ROWS[method]()))
    output = printed(stack, method, str(file), str(model), seconds=300)
    assert "succeeded: ft:tiny-llama:default:" in output
    assert "\nanswer: " in output


@pytest.mark.heavy
def test_teach_a_fact(stack: Stack, model: Path) -> None:
    """With one epoch instead of three; whether a model of this size has learned it says nothing."""
    output = printed(stack, "teach_a_fact", str(model), "--epochs", "1", seconds=1200)
    assert re.search(r"^after, ft:tiny-llama:default:fact:job-\w+:$", output, re.M)
    assert len(re.findall(r" of 5 are right$", output, re.M)) == 2
