import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from service import logging as service_logging
from service.settings import Settings


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
