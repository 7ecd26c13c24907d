"""The service at FINETUNE_URL may be anybody's: it writes no file outside of the download."""

import json
from pathlib import Path

import pytest

from service.cli.models import whole_folder
from service.cli.terminal import ids
from service.cli.terminal.exit_codes import UsageError
from tests.cli.conftest import Cli
from tests.support.hostile_text import HOSTILE, steering
from tests.support.servers.scripted_service import serving


class TestPaths:
    @pytest.mark.parametrize(
        "name",
        [
            *("/etc/passwd", "../x", "model/../../x", "", ".", "a/..", "//x"),
            *("a\x00b", "a\x1b[2J", "a\u202eb", "line\nend", "lone\udc9b"),
            *("nul", "model/CON.json", "com1 .txt", "aux"),
            *(whole_folder.MANIFEST, ".finetune-partial-1/x", f"a/{whole_folder.MANIFEST}"),
        ],
    )
    def test_a_name_is_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(UsageError, match="the service names"):
            whole_folder.paths(["model/config.json", name], tmp_path)

    @pytest.mark.parametrize(
        ("one", "other"),
        [("model/A.json", "model/a.json"), ("stra\u00dfe", "STRASSE"), ("e\u0301", "\u00e9")],
    )
    def test_two_names_that_may_be_one_file(self, tmp_path: Path, one: str, other: str) -> None:
        with pytest.raises(UsageError, match="alike"):
            whole_folder.paths([one, other], tmp_path)

    def test_other_names_lie_in_the_folder(self, tmp_path: Path) -> None:
        names = ["model/config.json", "predictions.json", "a b/\u8cea.txt", "console.log"]
        assert whole_folder.paths(names, tmp_path) == {name: tmp_path / name for name in names}


@pytest.mark.parametrize(
    "answer", ["job-0123/../../x", "job-0123\n", "job-0123.tar", "job-0123" + "0" * 40]
)
def test_an_id_of_another_form_does_not_match(answer: str) -> None:
    page = {"data": [{"id": answer}], "has_more": False}
    with pytest.raises(UsageError, match="no job has an id that begins with job-0123"):
        ids.find(lambda _path, _parameters: page, ids.JOB, "0123")


@pytest.mark.parametrize("text", [*HOSTILE, "deep"])
def test_an_error_of_its_steers_no_terminal(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    problem = {
        "title": text,
        "detail": text,
        "message": text,
        "code": text,
        "errors": [{"path": text, "message": text, "suggestion": text}],
    }
    body = "[" * 100_000 if text == "deep" else json.dumps(problem)

    with serving() as server:
        server.answers = [(404, body)]
        monkeypatch.setenv("FINETUNE_URL", server.url)
        outcome = cli("list")
    assert outcome.status == 2
    assert steering(outcome.out + outcome.err) == []
    assert "Traceback" not in outcome.err
