"""Templates that loop, or write far more than the row has: templates are untrusted."""

from pathlib import Path
from typing import Any

import pytest

from service.contract.failures import FailureCode, StageError
from service.contract.tasks.chat import ChatSpec
from tests.tasks.chat.jobs import ROWS, chat_job, talk
from tests.tasks.chat.support import conversation, turn
from tests.training.support.jobs import fails_with
from worker.data.table import JobEndingRowError, RowError
from worker.tasks.chat import jinja, templates
from worker.tasks.chat.rendering import Renderer

TALK = (turn("user", "loop"), turn("assistant", "of water"))
OTHERS = (turn("user", "the report"), turn("assistant", "of water"))
ENDLESS = "{% for a in range(100000) %}{% for b in range(100000) %}BODY{% endfor %}{% endfor %}"


def looping(body: str) -> str:
    """A template that loops for a row whose first turn asks for it."""
    condition = "{% if messages[0].content.startswith('loop') %}"
    return f"{condition}{ENDLESS.replace('BODY', body)}{{% endif %}}{templates.read('zephyr')}"


def render(tokenizer: Any, template: str, *talk: dict[str, Any]) -> Any:
    return Renderer(tokenizer, ChatSpec(chat_template=template)).render(conversation(*talk))


class TestLength:
    @pytest.mark.parametrize("mark", ["", "{% generation %}{% endgeneration %}"])
    def test_of_a_text_is_limited_while_it_is_written(self, tokenizer: Any, mark: str) -> None:
        text = looping("{{ messages[0].content * 1000 }}" + mark)
        with pytest.raises(RowError, match=r"writes more than 1,00\d,\d\d\d characters") as caught:
            render(tokenizer, text, *TALK)
        assert caught.value.reason == "too_long"

    def test_grows_with_the_row(self, tokenizer: Any) -> None:
        long = turn("user", "the report of the water board " * 40_000)
        found = render(tokenizer, "zephyr", long, OTHERS[1])
        assert len(tokenizer.decode(found.input_ids)) > 1_000_000


def test_a_range_is_limited(tokenizer: Any) -> None:
    text = "{% for a in range(100001) %}{% endfor %}" + templates.read("zephyr")
    with pytest.raises(RowError, match="Range too big") as caught:
        render(tokenizer, text, *TALK)
    assert caught.value.reason == "template_refuses"


class TestTime:
    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jinja, "_SECONDS", 0.2)

    @pytest.mark.parametrize("body", ["", "{% set c = b %}"])
    def test_is_limited_where_nothing_is_written(self, tokenizer: Any, body: str) -> None:
        renderer = Renderer(tokenizer, ChatSpec(chat_template=looping(body)))
        with pytest.raises(JobEndingRowError, match="the chat template takes more than"):
            renderer.render(conversation(*TALK))
        assert renderer.render(conversation(*OTHERS)).input_ids

    def test_of_a_template_that_never_ends_is_reported_before_the_rows(
        self, tokenizer: Any
    ) -> None:
        with fails_with(FailureCode.INVALID_OPTION, r"`task.chat_template` takes more than"):
            Renderer(tokenizer, ChatSpec(chat_template=ENDLESS.replace("BODY", "")))

    def test_so_is_that_of_one_that_ends_without_calls_alone(self, tokenizer: Any) -> None:
        calls = "{% for message in messages if message.tool_calls %}LOOP{% endfor %}"
        text = calls.replace("LOOP", ENDLESS.replace("BODY", "")) + templates.read("zephyr")
        with pytest.raises(StageError, match="takes too much time or memory to write a call"):
            Renderer(tokenizer, ChatSpec(chat_template=text))

    def test_a_row_that_takes_too_long_is_named_and_never_skipped(self, tmp_path: Path) -> None:
        """Which rows are skipped does not depend on how fast the machine is."""
        rows = [ROWS[0], talk("loop", "was read"), *ROWS[1:3]]
        job = chat_job(tmp_path / "job", rows, chat_template=looping(""))
        job.body["dataset"] |= {"on_bad_row": "skip", "max_bad_fraction": 0.9}
        with fails_with(FailureCode.INVALID_OPTION, "line 2: the chat template takes more"):
            job.prepare()


def test_memory_is_limited(tokenizer: Any) -> None:
    text = "{% set a = messages[0].content * 3000000000 %}" + templates.read("zephyr")
    with pytest.raises(StageError, match="takes more than 2 GiB of memory to write two short"):
        Renderer(tokenizer, ChatSpec(chat_template=text))
