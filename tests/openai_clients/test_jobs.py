"""The whole life of jobs on a running service, with its own worker, through unmodified clients."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import trl_scratch
from tests.e2e.stack import Stack
from tests.openai_clients.releases import ALL, NEWEST, Release
from tests.openai_clients.scripts import jobs
from tests.support import services
from tests.support.models import save_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama", positions=1024)


@pytest.fixture
def smollm2() -> Path:
    if not (SMOLLM2 / "tokenizer.json").is_file():
        pytest.skip("no SmolLM2 here: `make bench NAME=trl_speed` makes it")
    return SMOLLM2


EXAMPLES = Path(__file__).parents[2] / "examples" / "openai_client"
SMOLLM2 = trl_scratch.FOLDER / "smollm2"
DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.heavy)]


@pytest.fixture(scope="module", params=DATABASES)
def stack(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    model: Path,
    mlflow_uri: str,
) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp(request.param)
    variables = {
        "FINETUNE_MLFLOW_URI": mlflow_uri,
        "FINETUNE_MODEL_ROOTS": f"{model.parent}:{SMOLLM2.parent}",
        "FINETUNE_WEBHOOK_ALLOW": "127.0.0.1",
    }
    with services.broker(services.valkey_binary()) as broker_url:
        variables["FINETUNE_REDIS_URL"] = broker_url
        if request.param == "postgres":
            with services.postgres_database(services.find_postgres()) as url:
                variables["FINETUNE_DATABASE_URL"] = url
                yield from _running(home, variables)
        else:
            yield from _running(home, variables)


def _running(home: Path, variables: dict[str, str]) -> Iterator[Stack]:
    stack = Stack(home, variables)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


def test_short(stack: Stack, model: Path) -> None:
    NEWEST.run("jobs", stack.url, str(model), model.name, "short", seconds=300)


@pytest.mark.heavy
@pytest.mark.parametrize("release", ALL, ids=lambda release: release.name)
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


@pytest.mark.heavy
@pytest.mark.parametrize("method", ROWS)
def test_example(method: str, stack: Stack, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(jobs.lines(ROWS[method]()))
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{method}.py"), str(file), str(model)],
        env={**os.environ, "OPENAI_BASE_URL": f"{stack.url}/v1", "OPENAI_API_KEY": "none"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "succeeded: ft:tiny-llama:default:" in done.stdout
    assert "\nanswer: " in done.stdout


@pytest.mark.heavy
def test_teach_a_fact(stack: Stack, model: Path) -> None:
    """The script; whether a model of this size has learned it says nothing."""
    said = _teach_a_fact(stack, model)
    assert re.search(r"^after, ft:tiny-llama:default:fact:job-\w+:$", said, re.M)
    assert len(re.findall(r" of 5 are right$", said, re.M)) == 2


@pytest.mark.heavy
def test_a_real_model_learns_the_fact(stack: Stack, smollm2: Path) -> None:
    before, after = re.findall(r"(\d) of 5 are right$", _teach_a_fact(stack, smollm2), re.M)
    assert int(before) <= 1
    assert int(after) >= 4


def _teach_a_fact(stack: Stack, model: Path) -> str:
    """What the example prints, with one epoch instead of three."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "teach_a_fact.py"), str(model), "--epochs", "1"],
        env={**os.environ, "OPENAI_BASE_URL": f"{stack.url}/v1", "OPENAI_API_KEY": "none"},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
