"""What is installed is what was tested: every package has a version and the hash of its files."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import pin_images

ROOT = Path(__file__).resolve().parents[2]
FILES = ("build", "service", "torch", "worker", "dev")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked(name: str) -> dict[str, str]:
    """Package → its version."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    found = re.findall(r"^([\w.-]+)==([^ ;]+)", text, re.MULTILINE)
    return {canonicalize_name(package): version for package, version in found}


def named(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(each).name) for each in requirements}


@pytest.mark.parametrize("name", FILES)
def test_every_package_has_hashes(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    entries = [each for each in re.split(r"\n(?=\S)", text) if not each.startswith("#")]
    assert len(entries) == len(locked(name)) >= 3
    for entry in entries:
        first, *hashes = entry.strip().split(" \\\n    ")
        assert re.match(r"[\w.-]+==\S+( ; .+)?$", first), first
        assert hashes, first
        assert all(map(HASH.fullmatch, hashes)), first
    assert "://" not in text, "an index or a file in place of a hash"


@pytest.mark.parametrize("name", FILES)
def test_versions_are_those_of_the_constraints(name: str) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constraints = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    tested: dict[str, str] = {
        canonicalize_name(package): version for package, version in constraints.items()
    }
    found = locked(name)
    assert {p: v for p, v in found.items() if tested.get(p, v) != v} == {}


def test_every_dependency_is_locked() -> None:
    """After a change of pyproject.toml or constraints.txt: `make locks`."""
    service, worker, dev = locked("service"), locked("worker"), locked("dev")
    extras = PROJECT["optional-dependencies"]
    of_this_repository = {"finetune-client"}
    assert named(PROJECT["dependencies"]) - of_this_repository <= service.keys()
    client = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
    assert named(client["dependencies"]) <= service.keys()
    assert not of_this_repository & dev.keys()
    assert service.keys() <= worker.keys()
    assert named(extras["worker"]) <= worker.keys() | locked("torch").keys()
    assert named(extras["dev"]) - {"finetune-service"} <= dev.keys()


@pytest.mark.parametrize("name", ["service", "worker"])
def test_the_oldest_python_is_thought_of(name: str) -> None:
    """redis needs it where Python is older than 3.11.3, which Debian 12 has."""
    assert "async-timeout" in locked(name)


def test_torch_is_apart() -> None:
    """It may come from an index of its own; nothing else is looked for there."""
    assert "torch" in locked("torch")
    assert not {"torch", "triton"} & {*locked("service"), *locked("worker"), *locked("dev")}
    text = (ROOT / "Dockerfile").read_text()
    commands = [line for line in text.splitlines() if "pip install" in line]
    indexed = [line for line in commands if "--index-url" in line]
    assert len(indexed) == 1
    assert "PIP_EXTRA_INDEX_URL= " in indexed[0]
    assert "--no-deps" in indexed[0]
    others = [line for line in commands if "/opt/finetune/wheel/" not in line]
    assert all("--require-hashes" in line for line in others if line not in indexed)


class TestPinnedImages:
    def test_are_those_of_the_compose_file(self) -> None:
        images = pin_images.images_of((ROOT / "docker-compose.yml").read_text())
        assert images.keys() == {"BASE_IMAGE", "POSTGRES_IMAGE", "REDIS_IMAGE"}
        assert images["BASE_IMAGE"] == "python:3.11-slim"

    def test_other_lines_of_the_file_stay(self) -> None:
        text = "A=1\nBASE_IMAGE=python:3.11-slim\n#REDIS_IMAGE=redis:7\n"
        values = {"BASE_IMAGE": "python@sha256:1", "REDIS_IMAGE": "redis@sha256:2"}
        assert pin_images.with_values(text, values) == (
            "A=1\nBASE_IMAGE=python@sha256:1\n#REDIS_IMAGE=redis:7\nREDIS_IMAGE=redis@sha256:2\n"
        )
