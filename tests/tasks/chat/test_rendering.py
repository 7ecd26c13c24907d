import copy
import re
from typing import Any

import pytest

from service.contract.failures import StageError
from service.contract.tasks.chat import ChatSpec
from tests.tasks.chat.support import conversation, trained_texts, turn
from worker.data.table import RowError
from worker.tasks.chat import templates
from worker.tasks.chat.jinja import Template
from worker.tasks.chat.rendering import Renderer

TALK = [
    turn("system", "be kind"),
    turn("user", "the report"),
    turn("assistant", "of water é"),
    turn("user", "and?"),
    turn("assistant", "in the morning"),
]
END = "<|endoftext|>"


def without_marks(text: str) -> str:
    return re.sub(r"\{%-? *(end)?generation *-?%\}", "", text)


def renderer(tokenizer: Any, template: str = "zephyr", **options: Any) -> Renderer:
    return Renderer(tokenizer, ChatSpec(chat_template=template, **options))


class TestTrainedTokens:
    @pytest.mark.parametrize("marks", [True, False])
    @pytest.mark.parametrize(
        ("train_on", "expected"),
        [
            ("assistant", [f"of water é{END}", f"in the morning{END}"]),
            ("last", [f"in the morning{END}"]),
            ("completion", [f"in the morning{END}"]),
        ],
    )
    def test_are_those_of_the_chosen_turns(
        self, tokenizer: Any, train_on: str, expected: list[str], marks: bool
    ) -> None:
        text = templates.read("zephyr") if marks else without_marks(templates.read("zephyr"))
        found = renderer(tokenizer, text, train_on=train_on).render(conversation(*TALK))
        assert trained_texts(tokenizer, found) == expected

    def test_are_all_but_those_of_weight_0(self, tokenizer: Any) -> None:
        left_out = {**TALK[2], "weight": 0}
        talk = conversation(*TALK[:2], left_out, *TALK[3:])
        found = renderer(tokenizer, train_on="all").render(talk)
        first, second = trained_texts(tokenizer, found)
        assert first.endswith("<|assistant|>\n")
        assert second.startswith("\n<|user|>\nand?")
        answers = renderer(tokenizer).render(talk)
        assert trained_texts(tokenizer, answers) == [f"in the morning{END}"]

    def test_are_the_mask_of_transformers(self, tokenizer: Any) -> None:
        text = templates.read("zephyr")
        theirs = tokenizer.apply_chat_template(
            TALK, chat_template=text, return_assistant_tokens_mask=True, return_dict=True
        )
        found = renderer(tokenizer).render(conversation(*TALK))
        assert found.input_ids == theirs["input_ids"]
        assert found.trained == [bool(each) for each in theirs["assistant_masks"]]

    def test_a_turn_may_be_marked_in_two_passages(self, tokenizer: Any) -> None:
        marked = "{% generation %}{{ m.content + eos_token }}{% endgeneration %}"
        answer = "{% if m.role == 'assistant' %}" + marked + "{% else %}{{ m.content }}{% endif %}"
        text = "{% for m in messages %}{{ m.role }}\n" + answer + "{% endfor %}"
        text += "{% generation %}{{ eos_token }}{% endgeneration %}"
        found = renderer(tokenizer, text).render(conversation(*TALK))
        expected = [f"of water é{END}", f"in the morning{END}{END}"]
        assert trained_texts(tokenizer, found) == expected

    def test_without_marks_a_turn_may_end_with_two_tokens(self, tokenizer: Any) -> None:
        text = "{% for m in messages %}{{ m.role }}\n{{ m.content + eos_token * 2 }}\n{% endfor %}"
        text += "{% if add_generation_prompt %}{{ 'assistant\n' }}{% endif %}"
        found = renderer(tokenizer, text).render(conversation(*TALK))
        expected = [f"of water é{END}{END}", f"in the morning{END}{END}"]
        assert trained_texts(tokenizer, found) == expected


class TestPrompt:
    def test_ends_with_the_opening_of_the_answer(self, tokenizer: Any) -> None:
        ids = renderer(tokenizer).prompt(conversation(*TALK))
        assert tokenizer.decode(ids).endswith(f"<|user|>\nand?{END}\n<|assistant|>\n")


class TestGates:
    def test_the_token_that_ends_a_turn_is_trained(self, tokenizer: Any) -> None:
        with pytest.raises(RowError, match=r"messages\[2\]: the token that ends") as caught:
            renderer(tokenizer, "chatml").render(conversation(*TALK))
        assert caught.value.reason == "no_end_of_turn"

    def test_each_prefix_begins_the_whole(self, tokenizer: Any) -> None:
        text = "{{ messages | length }}" + without_marks(templates.read("zephyr"))
        with pytest.raises(RowError, match=r"messages\[2\]: the chat template") as caught:
            renderer(tokenizer, text).render(conversation(*TALK))
        assert caught.value.reason == "not_a_prefix"

    def test_a_turn_is_found_with_two_renderings(
        self, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of what comes before it, and of that with it; long conversations have many turns."""
        made = renderer(tokenizer, without_marks(templates.read("zephyr")))
        seen: list[int] = []
        original = Template.render

        def counted(template: Template, messages: Any, row: Any, *, opens: bool = False) -> Any:
            seen.append(len(messages))
            return original(template, messages, row, opens=opens)

        monkeypatch.setattr(Template, "render", counted)
        made.render(conversation(*TALK))
        assert seen == [5, 2, 3, 4, 5]

    def test_what_comes_before_the_first_turn_may_be_refused(self, tokenizer: Any) -> None:
        text = "{{ messages[0].role }}\n" + without_marks(templates.read("zephyr"))
        with pytest.raises(RowError, match="given only the turns before this one") as caught:
            renderer(tokenizer, text).render(conversation(turn("assistant", "hello")))
        assert caught.value.reason == "template_refuses"
        assert str(caught.value).startswith("messages[0]: the chat template refuses")
        assert renderer(tokenizer, text).render(conversation(*TALK)).input_ids

    def test_the_words_of_the_template_reach_the_user(self, tokenizer: Any) -> None:
        text = "{% if messages %}{{ raise_exception('roles must alternate') }}{% endif %}"
        with pytest.raises(RowError, match="roles must alternate") as caught:
            renderer(tokenizer, text).render(conversation(*TALK))
        assert caught.value.reason == "template_refuses"


class TestTemplate:
    @pytest.mark.parametrize(
        ("given", "words"),
        [
            (None, "has no chat template: .*: chatml, "),
            ("zephir", "did you mean 'zephyr'?"),
            ("{% if %}", "line 1"),
            ("{{ bos_token }}\n{% for x %}", "line 2"),
        ],
    )
    def test_without_one_the_error_says_what_to_give(
        self, tokenizer: Any, given: str | None, words: str
    ) -> None:
        with pytest.raises(StageError, match=words):
            Renderer(tokenizer, ChatSpec(chat_template=given))

    @pytest.mark.parametrize("own", [5, {}, {"rag": "{{ messages }}"}, {"default": 5}])
    def test_of_the_model_may_be_none_that_can_be_used(self, tokenizer: Any, own: Any) -> None:
        model = copy.deepcopy(tokenizer)
        model.chat_template = own
        with pytest.raises(StageError, match="has no chat template"):
            Renderer(model, ChatSpec())

    def test_of_the_model_with_tools_is_another(self, tokenizer: Any) -> None:
        model = copy.deepcopy(tokenizer)
        with_tools = "{{ tools[0].function.name }}" + templates.read("zephyr")
        model.chat_template = {"default": templates.read("zephyr"), "tool_use": with_tools}
        tools = [{"name": "add"}]
        plain = Renderer(model, ChatSpec()).render(conversation(*TALK))
        found = Renderer(model, ChatSpec()).render(conversation(*TALK, tools=tools))
        assert tokenizer.decode(found.input_ids) == "add" + tokenizer.decode(plain.input_ids)
        named = Renderer(model, ChatSpec(chat_template="tool_use"))
        assert named.render(conversation(*TALK, tools=tools)) == found
