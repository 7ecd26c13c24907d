"""The pages name every field of the service, and no setting or command that it does not have."""

import json
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
import typer
import yaml

from benchmarks import __main__ as benchmarks
from service.api.searches import plot_cache
from service.cli.app import app
from service.contract.search.objectives import Objective
from service.contract.search.pruners import PrunerSpec
from service.contract.search.samplers import SamplerSpec
from service.contract.search.space import Dimension
from service.contract.search.spec import SearchSpec
from service.contract.search.states import TrialState
from service.contract.spec.dataset import DatasetSpec
from service.contract.spec.hub import HubSpec
from service.contract.spec.model import ModelSpec
from service.contract.spec.spec import JobSpec
from service.contract.spec.tracking import TrackingSpec
from service.contract.tasks.tasks import TASKS
from service.settings import Settings
from tests.api.conftest import running
from tests.docs.pages import ROOT, blocks, code_spans, name_of, pages
from tests.support.openapi import document
from worker.tasks.chat import templates

TEXTS = {name_of(page): page.read_text(encoding="utf-8") for page in pages()}
# The changelog may name what has been removed.
EVERYTHING = "\n".join(text for name, text in TEXTS.items() if name != "CHANGELOG.md")
CLIENT_VARIABLES = {"FINETUNE_URL", "FINETUNE_API_KEY", "FINETUNE_PROJECT"}
COMPOSE_VARIABLES = {"FINETUNE_BIND"}
OF_FILES = {f"FINETUNE_{name.upper()}_FILE" for name in Settings.secrets()}


class TestSettings:
    def test_no_page_names_another(self) -> None:
        named = set(re.findall(r"\bFINETUNE_[A-Z_]*[A-Z]\b(?!_)", EVERYTHING))
        known = {f"FINETUNE_{name.upper()}" for name in Settings.model_fields}
        assert named <= known | CLIENT_VARIABLES | COMPOSE_VARIABLES | OF_FILES


def commands() -> set[str]:
    root: Any = typer.main.get_command(app)
    return set(root.commands)


def workflow_commands() -> Iterator[str]:
    """What the workflows run, for each target of their matrices."""
    for file in (ROOT / ".github/workflows").glob("*.yml"):
        for job in yaml.safe_load(file.read_text())["jobs"].values():
            targets = job.get("strategy", {}).get("matrix", {}).get("target", [""])
            for step, target in product(job["steps"], targets):
                if "run" in step:
                    yield step["run"].replace("${{ matrix.target }}", target)


class TestCommandLine:
    def test_no_page_shows_another(self) -> None:
        shown = set(
            re.findall(r"(?:^|`|/|\$\(|-- )finetune ([a-z]+(?:-[a-z]+)*)", EVERYTHING, re.M)
        )
        assert shown <= commands()

    def test_each_make_target_that_is_shown_exists(self) -> None:
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
        shown = re.findall(r"(?:^|`)make ([a-z-]+)", EVERYTHING, re.M)
        assert {"demo", "site", "bench"} <= set(shown) <= targets

    def test_each_module_that_is_shown_exists(self) -> None:
        shown = set(
            re.findall(r"python -m ((?:service|worker|chaos|benchmarks)[\w.]*)", EVERYTHING)
        )
        assert {"chaos", "chaos.attacks.trainings.exact_resume"} <= shown
        assert [name for name in sorted(shown) if find_spec(name) is None] == []

    def test_the_workflows_call_make_targets(self) -> None:
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert set(workflow_commands()) <= {".ci/run", *(f"make {target}" for target in targets)}
        assert {".ci/run", "make site", "make heavy"} <= set(workflow_commands())

    def test_each_benchmark_has_a_figure_in_a_page_and_no_other_is_shown(self) -> None:
        shown = re.findall(r"(?:NAME=|python -m benchmarks\.)([a-z_]+)", EVERYTHING)
        assert set(shown) == set(benchmarks.NAMES)
        assert tuple(sorted(benchmarks.NAMES)) == benchmarks.NAMES


class TestRoutes:
    def test_the_page_names_no_other(self) -> None:
        paths = document()["paths"]
        routes = {f"{method.upper()} {path}" for path in paths for method in paths[path]}
        named = set(
            re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE) /[^`?]*)", TEXTS["docs/http-api.md"])
        )
        assert named
        assert named <= routes


class TestSpec:
    @pytest.mark.parametrize("model", [JobSpec, ModelSpec, TrackingSpec, HubSpec])
    def test_each_field_is_described(self, model: Any) -> None:
        named = set(code_spans(TEXTS["docs/spec.md"]))
        assert set(model.model_fields) <= named

    def test_each_field_of_the_data_is_described(self) -> None:
        named = set(code_spans(TEXTS["docs/spec.md"]))
        models = DatasetSpec.__args__[0].__args__
        assert {name for model in models for name in model.model_fields} - {"source"} <= named

    @pytest.mark.parametrize("task", TASKS)
    def test_each_parameter_of_a_task_is_described(self, task: str) -> None:
        named = set(code_spans(TEXTS["docs/tasks.md"]))
        assert task in named
        assert set(TASKS[task].parameters.model_fields) - {"type"} <= named

    def test_each_chat_template_is_named(self) -> None:
        assert set(templates.NAMES) <= set(code_spans(TEXTS["docs/tasks.md"]))

    @pytest.mark.parametrize("name", ["README.md", "docs/spec.md"])
    def test_each_whole_spec_is_valid(self, name: str) -> None:
        specs = [
            body
            for body in map(yaml.safe_load, blocks(TEXTS[name], "yaml"))
            if {"task", "model", "dataset"} <= body.keys()
        ]
        assert specs
        for body in specs:
            for split in ("train", "validation", "test"):
                if str(body["dataset"].get(split, "")).startswith("./"):
                    body["dataset"][split] = "file-1"
            JobSpec.model_validate(body)


class TestSearches:
    PAGE = TEXTS["docs/searches.md"]

    @pytest.mark.parametrize("model", [SearchSpec, Dimension, Objective])
    def test_each_field_is_described(self, model: Any) -> None:
        assert set(model.model_fields) <= set(code_spans(self.PAGE))

    @pytest.mark.parametrize(
        "model", [*get_args(SamplerSpec), *get_args(PrunerSpec)], ids=lambda model: model.__name__
    )
    def test_each_sampler_and_pruner_is_described_in_a_row(self, model: Any) -> None:
        name = model.model_fields["name"].default
        [row] = [line for line in self.PAGE.splitlines() if line.startswith(f"| `{name}` | ")]
        named = set(code_spans(row.partition(" | ")[2]))
        assert set(model.model_fields) - {"name", "seed", "unit"} <= named

    def test_each_state_and_figure_is_described(self) -> None:
        assert {*TrialState, *plot_cache.NAMES} <= set(code_spans(self.PAGE))

    def test_the_search_and_its_variations_are_valid(self) -> None:
        whole, *parts = map(yaml.safe_load, blocks(self.PAGE, "yaml"))
        whole["job"]["dataset"] |= {"train": "file-1", "validation": "file-2"}
        assert len(parts) == 3
        for part in ({}, *parts):
            SearchSpec.model_validate({**whole, **part})


class TestErrors:
    @pytest.fixture
    def url(self, tmp_path: Path, sqlite_template: Path) -> Iterator[str]:
        shutil.copy(sqlite_template, tmp_path / "finetune.db")
        with running(Settings(home=tmp_path, auth="off")) as url:
            yield url

    def test_the_example_is_answered_as_shown(self, url: str) -> None:
        """The wording aside."""
        request, shown = map(json.loads, blocks(TEXTS["docs/http-api.md"], "json"))
        answer = httpx.post(f"{url}/v1/jobs/validate", json=request).json()["errors"]
        for error in [*answer, *shown]:
            del error["message"]
            error["allowed"] = error["allowed"] and error["allowed"][:3]
        assert answer == shown


class TestLogs:
    def test_each_event_that_is_named_is_logged(self) -> None:
        section = TEXTS["docs/operating.md"].partition("## Logs")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| (`.*?`) \|", section, re.M)
        named = set(code_spans("\n".join(rows)))
        code = [
            file.read_text(encoding="utf-8")
            for folder in ("service", "worker")
            for file in (ROOT / folder).rglob("*.py")
        ]
        assert "lease.expired" in named
        # `f"{…}.recovered"`: of previews and predictions alike.
        literals = {event: (f'"{event}"', f'}}.{event.partition(".")[2]}"') for event in named}
        found = {
            event for event, parts in literals.items() if any(p in t for p in parts for t in code)
        }
        assert named - found == set()


class TestAttacks:
    def test_each_has_its_results(self) -> None:
        """Read, not imported: the attacks bring the whole test stack with them."""
        registry = (ROOT / "chaos/registry.py").read_text(encoding="utf-8")
        attacks = re.findall(r'^    "([a-z-]+)": ', registry, re.M)
        table = TEXTS["docs/reliability.md"].partition("## Results")[2]
        assert sorted(re.findall(r"^\| `([a-z-]+)`", table, re.M)) == sorted(attacks)


class TestFiles:
    def test_each_file_that_is_named_exists(self) -> None:
        named = {
            span.rstrip("/")
            for name, text in TEXTS.items()
            if name != "CHANGELOG.md"
            for span in code_spans(text)
            if re.fullmatch(r"(service|worker|chaos|tests|docs|examples|scripts)/[\w./-]+", span)
        }
        assert len(named) > 30
        assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
