import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from service import logging as service_logging
from service.settings import Settings
from tests.support.hostile_text import HOSTILE, steering


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


class TestConfigure:
    def test_json_lines_carry_the_job(self, capsys: pytest.CaptureFixture[str]) -> None:
        service_logging.configure(Settings(log_format="json"))
        with structlog.contextvars.bound_contextvars(job_id="job-1"):
            structlog.get_logger("ours").info("hello", step=3)
            logging.getLogger("theirs").warning("of a library: %s", "x")
        ours, theirs = (json.loads(line) for line in capsys.readouterr().err.splitlines())
        assert (ours["event"], ours["step"], ours["job_id"]) == ("hello", 3, "job-1")
        assert (ours["level"], ours["logger"]) == ("info", "ours")
        assert (theirs["event"], theirs["job_id"]) == ("of a library: x", "job-1")

    def test_level(self, capsys: pytest.CaptureFixture[str]) -> None:
        service_logging.configure(Settings(log_level="error"))
        structlog.get_logger("ours").warning("quiet")
        structlog.get_logger("ours").error("loud")
        assert "quiet" not in (text := capsys.readouterr().err)
        assert "loud" in text

    @pytest.mark.parametrize("log_format", ["console", "json"])
    def test_a_traceback_shows_no_local_variables(
        self, capsys: pytest.CaptureFixture[str], log_format: str
    ) -> None:
        service_logging.configure(Settings(log_format=log_format))
        secret = "hf_" + "secret"
        try:
            raise ValueError(len(secret))
        except ValueError:
            structlog.get_logger("ours").exception("failed")
        text = capsys.readouterr().err
        assert "ValueError" in text
        assert "hf_secret" not in text

    @pytest.mark.parametrize("text", HOSTILE)
    @pytest.mark.parametrize("log_format", ["console", "json"])
    def test_no_value_forges_a_line(
        self, capsys: pytest.CaptureFixture[str], log_format: str, text: str
    ) -> None:
        service_logging.configure(Settings(log_format=log_format))
        forged = f"{text}\n2026-01-01T00:00:00Z [info     ] job.succeeded"
        structlog.get_logger("ours").info("request.completed", path=forged)
        written = capsys.readouterr().err
        assert written.count("\n") == 1
        assert steering(written) == []

    def test_lines_of_an_exception_are_indented(self, capsys: pytest.CaptureFixture[str]) -> None:
        service_logging.configure(Settings(log_format="console"))
        try:
            raise ValueError("\x1b[2J\nforged")
        except ValueError:
            structlog.get_logger("ours").exception("failed")
        record, *others = capsys.readouterr().err.splitlines()
        assert "failed" in record
        assert all(line.startswith("    ") for line in others)
        assert others[-2:] == ["    ValueError: \\x1b[2J", "    forged"]

    @pytest.mark.parametrize("log_format", ["console", "json"])
    def test_credentials_are_masked(
        self, capsys: pytest.CaptureFixture[str], log_format: str
    ) -> None:
        service_logging.configure(Settings(log_format=log_format))
        try:
            raise OSError("no answer from redis://:secret-of-broker@host:6379/0")
        except OSError as error:
            structlog.get_logger("ours").exception("failed", error=str(error))
        written = capsys.readouterr().err
        assert "secret-of-broker" not in written
        # In `error`, in the line of code and in the message.
        assert written.count("redis://***@host:6379/0") == 3
