"""The pages of docs/guides: their files, commands and programs."""

import re
import runpy
import time
from contextlib import chdir
from pathlib import Path
from typing import Final

import pytest
import yaml

from service.contract.tasks.tasks import TASKS
from tests.docs import guides
from tests.docs.guides import Guide
from tests.e2e.stack import BIN, Stack
from tests.support import shell
from tests.support.models import save_tiny_bert, save_tiny_gpt2, save_tiny_llama, save_tiny_t5

# The pages are the same with either database.
pytestmark = [
    pytest.mark.parametrize("stack", ["postgres-redis"], indirect=True),
    # The pages run in the setup of the first test: a minute on two cores, more on busy ones.
    pytest.mark.timeout(600),
    # The commands are those of the README, whose page is read in each run (tests/docs).
    pytest.mark.heavy,
]

# All that differs from what a reader does: small models take the place of those on the Hub; the
# program runs in this process, where transformers is imported already; and only one page runs
# `validate --data` and `try`, which import it anew.
TINY_MODELS: Final = {
    "sentence-transformers/all-MiniLM-L6-v2": "guides-bert",
    "distilbert/distilbert-base-cased": "guides-bert",
    "distilbert/distilbert-base-cased-distilled-squad": "guides-bert",
    "distilbert/distilroberta-base": "guides-bert",
    "HuggingFaceTB/SmolLM2-135M": "guides-gpt2",
    "HuggingFaceTB/SmolLM2-135M-Instruct": "guides-chat",
    "google-t5/t5-small": "guides-t5",
}
PROGRAM: Final = "python "
PREVIEWED: Final = "text-classification"
SECONDS: Final = 500

PRINTED: Final = {
    "question-answering": r".*\n",
    "causal-lm": r"Item 11: The garden\.(?s:.*)\n",
    "masked-lm": r"(\S* 0\.\d+\n){3}",
    "text-classification": (
        r"(positive|negative) [01]\.\d+ It stopped working on the second day\.\n"
        r"(positive|negative) [01]\.\d+ Beautiful, I love it\.\n"
    ),
    "token-classification": r"((PER|LOC) .+ [01]\.\d+\n)*",
    "summarization": r".*\n",
    "translation": r".*\n",
    "chat": r"(?s:.*)\n",
    "preference": r"(?s:.*)\n",
    "reward": r"(-?\d+\.\d\d .+\n){2}",
}


@pytest.fixture(scope="package")
def folders(
    request: pytest.FixtureRequest,
    stack: Stack,
    tiny_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    """Task → the reader's folder once the commands of its page have run.

    All pages that the chosen tests read, at once.
    """
    roots = tiny_model.parent
    save_tiny_bert(roots / "guides-bert")
    save_tiny_gpt2(roots / "guides-gpt2")
    save_tiny_llama(roots / "guides-chat", positions=512)
    texts = [Guide.read(task).text for task in ("translation", "summarization")]
    save_tiny_t5(roots / "guides-t5", texts)
    found = {task: tmp_path_factory.mktemp(task) for task in sorted(asked(request.session))}
    deadline = time.monotonic() + SECONDS
    running = [start(Guide.read(task), folder, roots, stack) for task, folder in found.items()]
    try:
        for folder, page in zip(found.values(), running, strict=True):
            (folder / "output").write_text(shell.printed(page, deadline - time.monotonic()))
    finally:
        for page in running:
            shell.end(page)
    return found


def asked(session: pytest.Session) -> set[str]:
    """The tasks of the tests of this file that will run, and of the preview's."""
    tests = [item for item in session.items if "folders" in getattr(item, "fixturenames", ())]
    return {item.callspec.params.get("task", PREVIEWED) for item in tests}  # type: ignore[attr-defined]


def start(guide: Guide, folder: Path, roots: Path, stack: Stack) -> shell.Shell:
    """Save the page's files and run its commands in one shell."""
    guide.save(folder)
    name, spec = guide.file(".yaml")
    model = yaml.safe_load(spec)["model"]["name_or_path"]
    tiny = str(roots / TINY_MODELS[model])
    (folder / name).write_text(spec.replace(f"name_or_path: {model}", f"name_or_path: {tiny}"))
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/activate").write_text(f'export PATH="{BIN}:$PATH"\n')
    lines = [line for line in guide.commands if not line.startswith(PROGRAM)]
    if guide.task != PREVIEWED:
        lines = [line.removesuffix(" --data") for line in lines if " try $JOB " not in line]
    script = "\n".join(["set -eu", *lines])
    return shell.start(script, folder, stack.env | {"FINETUNE_URL": stack.url})


class TestGuides:
    def test_there_is_one_for_each_task(self, stack: Stack) -> None:
        assert set(guides.TASKS) == set(TASKS) == set(PRINTED)

    @pytest.mark.parametrize("task", guides.TASKS)
    def test_the_commands_train_and_download(
        self, task: str, folders: dict[str, Path], stack: Stack
    ) -> None:
        spec = yaml.safe_load(Guide.read(task).file(".yaml")[1])
        [job] = stack.http.get("/v1/jobs", params={"name": spec["name"]}).json()["data"]
        assert (job["state"], job["name"]) == ("succeeded", spec["name"])
        report = stack.job(job["id"])["result"]["data_report"]["splits"]
        assert sum(split["rows_used"] for split in report.values()) == 10
        assert (folders[task] / spec["name"] / "model/config.json").is_file()

    def test_the_preview_and_the_trial_show_the_rows(self, folders: dict[str, Path]) -> None:
        output = (folders[PREVIEWED] / "output").read_text()
        assert "reviews.yaml is valid" in output
        assert "8 rows read, 8 usable" in output or "10 rows read, 10 usable" in output
        assert re.search(r"(positive|negative) +0?\.?\d", output)

    @pytest.mark.parametrize("task", guides.TASKS)
    def test_the_program_prints_what_the_page_shows(
        self, task: str, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        guide = Guide.read(task)
        name, _ = guide.file(".py")
        assert f"{PROGRAM}{name}" in guide.commands
        with chdir(folders[task]):
            runpy.run_path(name)
        assert re.fullmatch(PRINTED[task], guide.output)
        assert re.fullmatch(PRINTED[task], capsys.readouterr().out)
