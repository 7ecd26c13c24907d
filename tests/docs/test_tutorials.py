"""Every command of README.md, of "Getting started" and of the tutorial with curl is run as it is
written, apart from those that install or need a container engine."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.support.reader import Reader, without_hub

NOT_RUN = (
    "make demo",  # TestDemo runs it, by itself
    "make test",  # runs this
    "make up",  # the fixture does, on other ports
    "make site",  # installs the site's generator; the workflow runs it
    "docker compose",  # tests/containers
)


def commands(page: str, *, heading: str = "") -> list[str]:
    """The blocks of commands of a page, in order, from `heading` on."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = blocks(text[text.index(heading) :], "")
    return [block for block in found if "──" not in block]


def run_lines(block: str) -> str:
    """The block without the lines that are not run here."""
    kept = (line for line in block.splitlines() if not line.startswith(NOT_RUN))
    return "\n".join(kept)


def script(page: str, tiny_bert: Path) -> str:
    text = "\n".join(run_lines(block) for block in commands(page))
    return without_hub(text, {"sentence-transformers/all-MiniLM-L6-v2": tiny_bert})


# The first test waits for the service; a busy machine with two cores needs two minutes for a page.
pytestmark = pytest.mark.timeout(900)


class TestCommands:
    @pytest.mark.usefixtures("processes")
    def test_make_up_runs_the_service(self) -> None:
        # Without what a make that runs the tests hands on to this one.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
        shown = subprocess.run(
            ["make", "--dry-run", "up"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout.splitlines()[-1].strip() == ".venv/bin/finetune up"

    def test_the_readme(self, reader: Reader, tiny_bert: Path) -> None:
        printed = reader.paste(script("README.md", tiny_bert))
        assert "succeeded" in printed
        assert "eval_f1" in printed

    @pytest.mark.heavy  # the README's commands, at more length
    def test_getting_started(self, reader: Reader, tiny_bert: Path) -> None:
        printed = reader.paste(script("docs/getting-started.md", tiny_bert))
        assert "succeeded" in printed
        assert "is cancelled" in printed or "is cancelling" in printed
        assert (reader.folder / "squad-sample" / "model" / "model.safetensors").is_file()

    @pytest.mark.heavy  # the README's steps, over HTTP
    def test_the_tutorial_with_curl(self, reader: Reader, tiny_bert: Path) -> None:
        text = script("docs/curl-tutorial.md", tiny_bert)
        printed = reader.paste(text.replace("http://127.0.0.1:8000", reader.url))
        lines = printed.splitlines()
        assert "True" in lines  # `valid`
        assert lines.count("succeeded") == 1
        assert '"deleted":true' in printed.replace(" ", "")
        assert "model.safetensors" in lines

    def test_the_tutorial_says_why_a_request_is_refused(self, reader: Reader) -> None:
        [functions, *_] = commands("docs/curl-tutorial.md")
        prepared = functions.replace("http://127.0.0.1:8000", reader.url)
        refused = (
            """(call -H "$JSON" -d '{"task": "qa"}' $URL/v1/jobs | field id) || echo "status $?" """
        )
        printed = reader.paste(f"{prepared}\n{refused}").splitlines()
        assert printed[-1] == "status 1"
        assert "`question-answering`" in printed[-2]

    def test_the_tutorial_says_that_nothing_answers(self, reader: Reader) -> None:
        [functions, *_] = commands("docs/curl-tutorial.md")
        functions = functions.replace("show $URL/health/ready", "")
        refused = '(call http://127.0.0.1:1/ | field id) || echo "status $?"'
        printed = reader.paste(f"{functions}\n{refused}").splitlines()
        assert "curl: (7)" in printed[-2]
        assert printed[-1] == "status 1"


@pytest.mark.usefixtures("processes")
@pytest.mark.heavy
@pytest.mark.timeout(1600)  # no less than make has, whose output tells how far it came
class TestDemo:
    def test_make_demo(self) -> None:
        """As README.md has it; installs into .venv if that does not exist."""
        done = subprocess.run(
            ["make", "demo"], cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        assert "On questions it has not seen" in done.stdout
