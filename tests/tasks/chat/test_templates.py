"""Our templates: their text, and the trained tokens in it, marked «so»."""

import re
from itertools import groupby
from typing import Any, Final

import pytest

from service.contract.tasks.chat import ChatSpec
from tests.tasks.chat.support import conversation, turn
from worker.data.table import RowError
from worker.tasks.chat import templates
from worker.tasks.chat.conversation import Conversation
from worker.tasks.chat.rendering import Rendered, Renderer

CHATML: Final = (
    "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    "<|im_start|>assistant\n«Hello.<|im_end|>»\n<|im_start|>user\nAnd?<|im_end|>\n"
    "<|im_start|>assistant\n«é 😀<|im_end|>»\n"
)
USER, ASSISTANT = "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"
GOLDEN: Final = {
    "chatml": CHATML,
    "deepseek": f"<s>Be kind.{USER}Hi{ASSISTANT}«Hello.</s>»{USER}And?{ASSISTANT}«é 😀</s>»",
    "gemma": "<s><start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n"
    "<start_of_turn>model\n«Hello.<end_of_turn>»\n<start_of_turn>user\nAnd?<end_of_turn>\n"
    "<start_of_turn>model\n«é 😀<end_of_turn>»\n",
    "granite": "<|start_of_role|>system<|end_of_role|>Be kind.<|end_of_text|>\n"
    "<|start_of_role|>user<|end_of_role|>Hi<|end_of_text|>\n"
    "<|start_of_role|>assistant<|end_of_role|>«Hello.<|end_of_text|>»\n"
    "<|start_of_role|>user<|end_of_role|>And?<|end_of_text|>\n"
    "<|start_of_role|>assistant<|end_of_role|>«é 😀<|end_of_text|>»\n",
    "llama2": "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHi [/INST]« Hello. </s>»"
    "<s>[INST] And? [/INST]« é 😀 </s>»",
    "llama3": "<s><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n«Hello.<|eot_id|>»"
    "<|start_header_id|>user<|end_header_id|>\n\nAnd?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n«é 😀<|eot_id|>»",
    "mistral": "<s>[INST] Be kind.\n\nHi[/INST]« Hello.</s>»[INST] And?[/INST]« é 😀</s>»",
    "olmo2": "<s><|system|>\nBe kind.\n<|user|>\nHi\n<|assistant|>\n«Hello.</s>»\n"
    "<|user|>\nAnd?\n<|assistant|>\n«é 😀</s>»",
    "phi3": "<|system|>\nBe kind.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n«Hello.<|end|>»\n"
    "<|user|>\nAnd?<|end|>\n<|assistant|>\n«é 😀<|end|>»\n</s>",
    "phi4": "<|im_start|>system<|im_sep|>Be kind.<|im_end|><|im_start|>user<|im_sep|>Hi<|im_end|>"
    "<|im_start|>assistant<|im_sep|>«Hello.<|im_end|>»<|im_start|>user<|im_sep|>And?<|im_end|>"
    "<|im_start|>assistant<|im_sep|>«é 😀<|im_end|>»",
    "qwen2.5": CHATML,
    "qwen3": CHATML.replace("«é 😀", "«<think>\n\n</think>\n\né 😀"),
    "smollm2": CHATML,
    "zephyr": "<|system|>\nBe kind.</s>\n<|user|>\nHi</s>\n<|assistant|>\n«Hello.</s>»\n"
    "<|user|>\nAnd?</s>\n<|assistant|>\n«é 😀</s>»\n",
}
TALK: Final = (
    turn("system", "Be kind."),
    *(turn("user", "Hi"), turn("assistant", "Hello.")),
    *(turn("user", "And?"), turn("assistant", "é 😀")),
)
CALL: Final = {"name": "add", "arguments": '{"a": 1, "b": "é"}'}
WITH_TOOL: Final = (
    turn("user", "1 + 1?"),
    turn("assistant", "I ask.", tool_calls=[CALL, CALL]),
    *(turn("tool", "2"), turn("tool", "2")),
    {"role": "assistant", "tool_calls": [CALL]},
    *(turn("tool", "2"), turn("assistant", "It is 2.")),
    *(turn("user", "Sure?"), turn("assistant", "Yes.")),
)
TALKS: Final = {
    "several turns": TALK,
    "one turn": TALK[1:3],
    "white space": (turn("user", " a \n"), turn("assistant", "\n b\n\n  c \n")),
    "its own words": (turn("user", "assistant"), turn("assistant", "user\nassistant\n")),
    "the same answer twice": (TALK[1], TALK[2], TALK[1], TALK[2]),
    "steering": (turn("user", "שלום \u202e\x00"), turn("assistant", "\u2066שלש\u2069\x1b[2J")),
}


def with_and_without_marks(name: str) -> tuple[str, str]:
    text = templates.read(name)
    return text, re.sub(r"\{%-? *(end)?generation *-?%\}", "", text)


def render(tokenizer: Any, template: str, talk: Conversation) -> Rendered:
    return Renderer(tokenizer, ChatSpec(chat_template=template)).render(talk)


def shown(tokenizer: Any, found: Rendered) -> str:
    text = ""
    for trained, run in groupby(zip(found.input_ids, found.trained, strict=True), lambda p: p[1]):
        part = tokenizer.decode([token for token, _ in run])
        text += f"«{part}»" if trained else part
    return text


def require_masks_of_transformers(tokenizer: Any, name: str, talk: Conversation) -> None:
    marked, _ = with_and_without_marks(name)
    found = render(tokenizer, name, talk)
    theirs = tokenizer.apply_chat_template(
        list(talk.messages),
        tools=talk.tools,
        chat_template=marked,
        return_assistant_tokens_mask=True,
        return_dict=True,
    )
    assert found.input_ids == theirs["input_ids"]
    assert found.trained == [bool(each) for each in theirs["assistant_masks"]]


def require_same_by_prefixes(tokenizer: Any, name: str, talk: Conversation) -> None:
    marked, plain = with_and_without_marks(name)
    assert render(tokenizer, marked, talk) == render(tokenizer, plain, talk)


@pytest.mark.parametrize("name", templates.NAMES)
class TestEachTemplate:
    def test_writes_its_familys_form_and_trains_what_the_assistant_writes(
        self, any_tokenizer: Any, name: str
    ) -> None:
        for template in with_and_without_marks(name):
            found = render(any_tokenizer, template, conversation(*TALK))
            assert shown(any_tokenizer, found) == GOLDEN[name]

    @pytest.mark.parametrize("talk", TALKS)
    def test_trains_the_same_tokens_by_marks_and_by_prefixes(
        self, any_tokenizer: Any, name: str, talk: str
    ) -> None:
        require_masks_of_transformers(any_tokenizer, name, conversation(*TALKS[talk]))
        require_same_by_prefixes(any_tokenizer, name, conversation(*TALKS[talk]))

    def test_opens_the_answer_as_the_whole_does(self, any_tokenizer: Any, name: str) -> None:
        talk = conversation(*TALK)
        spec = ChatSpec(chat_template=name, train_on="last")
        whole = Renderer(any_tokenizer, spec).render(talk)
        prompt = Renderer(any_tokenizer, spec).prompt(talk)
        assert whole.input_ids[: len(prompt)] == prompt
        assert whole.trained.index(True) == len(prompt)


def calling(call: str) -> str:
    """A template that writes the expression `call` for each call, after the function's name."""
    return (
        "{% for message in messages %}{{ message.role + ': ' }}{% if message.tool_calls %}"
        "{% for call in message.tool_calls %}{{ call.function.name + ' ' }}{% generation %}"
        f"{{{{ {call} + eos_token }}}}{{% endgeneration %}}{{% endfor %}}"
        "{% elif message.role == 'assistant' %}{% generation %}{{ message.content + eos_token }}"
        "{% endgeneration %}{% else %}{{ message.content }}{% endif %}{{ '\n' }}{% endfor %}"
    )


class TestToolsAndThinking:
    @pytest.mark.parametrize("name", ["qwen2.5", "qwen3"])
    def test_calls_are_trained_and_results_are_not(self, any_tokenizer: Any, name: str) -> None:
        talk = conversation(*WITH_TOOL, tools=[{"name": "add", "parameters": {"a": "é"}}])
        require_masks_of_transformers(any_tokenizer, name, talk)
        text = shown(any_tokenizer, render(any_tokenizer, name, talk))
        tool = '{"type": "function", "function": {"name": "add", "parameters": {"a": "é"}}}'
        assert f"<tools>\n{tool}\n</tools>" in text
        call = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é"}}\n</tool_call>'
        assert f"assistant\n«I ask.\n{call}\n{call}<|im_end|>»\n" in text
        assert f"assistant\n«{call}<|im_end|>»\n<|im_start|>user\n<tool_response>\n2\n" in text

    def test_calls_are_found_by_prefixes_or_refused(self, any_tokenizer: Any) -> None:
        talk = conversation(*WITH_TOOL, tools=[{"name": "add"}])
        require_same_by_prefixes(any_tokenizer, "qwen2.5", talk)
        _, plain = with_and_without_marks("qwen3")  # it writes calls otherwise once answers follow
        with pytest.raises(RowError) as caught:
            render(any_tokenizer, plain, talk)
        assert caught.value.reason == "not_a_prefix"

    def test_qwen3_thinks_after_the_last_question(self, any_tokenizer: Any) -> None:
        talk = conversation(
            *(turn("user", "a"), turn("assistant", "b", thinking="first")),
            *(turn("user", "c"), turn("assistant", "<think>\nsecond\n</think>\n\nd")),
        )
        require_masks_of_transformers(any_tokenizer, "qwen3", talk)
        require_same_by_prefixes(any_tokenizer, "qwen3", talk)
        text = shown(any_tokenizer, render(any_tokenizer, "qwen3", talk))
        assert "«b<|im_end|>»" in text
        assert "first" not in text
        assert "«<think>\nsecond\n</think>\n\nd<|im_end|>»" in text

    @pytest.mark.parametrize(
        ("arguments", "written"),
        [
            ("call.function.arguments | tojson", "a call: "),
            ("call.function.arguments", "a call: "),
            ("call.function.arguments | string", "a call: "),
            ("call.function.arguments", "message.content + 'a call: '"),
            ("call.function.arguments | tojson", "message.content + 'a call: '"),
        ],
    )
    @pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
    def test_calls_have_the_form_that_the_template_reads(
        self, any_tokenizer: Any, arguments: str, written: str, content: dict[str, Any]
    ) -> None:
        """Arguments as an object or as text; a turn without a text with an empty one, or none."""
        shown_text = written if "content" in written else f"'{written}'"
        text = calling(f"{shown_text} + {arguments}")
        call = turn("user", "1?"), {"role": "assistant", "tool_calls": [CALL], **content}
        found = shown(any_tokenizer, render(any_tokenizer, text, conversation(*call)))
        assert found == 'user: 1?\nassistant: add «a call: {"a": 1, "b": "é"}</s>»\n'

    def test_a_template_may_show_calls_of_turns_with_null_alone(self, any_tokenizer: Any) -> None:
        """As DeepSeek-R1's own does, which loses those of a turn with a text."""
        text = calling("call.function.arguments").replace(
            "if message.tool_calls", "if message.content is none"
        )
        silent = {"role": "assistant", "tool_calls": [CALL], "content": ""}
        found = render(any_tokenizer, text, conversation(turn("user", "1?"), silent))
        assert '«{"a": 1, "b": "é"}</s>»' in shown(any_tokenizer, found)
        talk = conversation(turn("user", "1?"), {**silent, "content": "I ask."}, turn("tool", "2"))
        renderer = Renderer(any_tokenizer, ChatSpec(chat_template=text))
        for write in (renderer.render, renderer.prompt):
            with pytest.raises(RowError, match="both the `content` and the calls") as caught:
                write(talk)
            assert caught.value.reason == "not_shown"
            assert str(caught.value).startswith("messages[1]: the chat template does not show")

    def test_a_template_may_show_the_first_call_of_a_turn_alone(self, any_tokenizer: Any) -> None:
        """As that of gpt-oss."""
        text = calling("call.function.arguments | tojson").replace(
            "in message.tool_calls", "in message.tool_calls[:1]"
        )
        one = {"role": "assistant", "tool_calls": [CALL]}
        assert render(any_tokenizer, text, conversation(TALK[1], one)).trained
        two = conversation(TALK[1], {**one, "tool_calls": [CALL, CALL]})
        with pytest.raises(RowError, match="does not show each call of a turn that has several"):
            render(any_tokenizer, text, two)

    def test_a_template_may_show_calls_only_with_tools(self, any_tokenizer: Any) -> None:
        text = calling("call.function.arguments | tojson").replace(
            "{% if message.tool_calls %}", "{% if message.tool_calls and tools %}"
        )
        messages = TALK[1], {"role": "assistant", "tool_calls": [CALL], "content": ""}
        with_tools = conversation(*messages, tools=[{"name": "add"}])
        assert render(any_tokenizer, text, with_tools).trained
        with pytest.raises(RowError, match="does not show the calls of a turn: remove them"):
            render(any_tokenizer, text, conversation(*messages))

    def test_thinking_has_the_name_of_gpt_oss_too(self, any_tokenizer: Any) -> None:
        shown_thinking = "{%- if message.thinking %}{{- message.thinking }}{%- endif %}"
        answer = "{{- message['content'] + '<|im_end|>' }}"
        text = templates.read("chatml").replace(answer, f"{shown_thinking}{answer}", 1)
        talk = conversation(TALK[1], turn("assistant", "b", thinking="hm, "))
        assert "\n«hm, b<|im_end|>»" in shown(any_tokenizer, render(any_tokenizer, text, talk))

    @pytest.mark.parametrize(
        ("talk", "lost"),
        [
            (conversation(*WITH_TOOL), "tool_calls"),
            (conversation(*TALK, tools=[{"name": "add"}]), "tools"),
            (conversation(TALK[1], turn("assistant", "b", thinking="c")), "reasoning_content"),
        ],
    )
    def test_what_a_template_does_not_show_is_refused(
        self, any_tokenizer: Any, talk: Conversation, lost: str
    ) -> None:
        with pytest.raises(RowError, match=f"does not show `{lost}`") as caught:
            render(any_tokenizer, "chatml", talk)
        assert caught.value.reason == "not_shown"

    def test_thinking_that_opens_the_answer_but_is_left_out_is_refused(
        self, any_tokenizer: Any
    ) -> None:
        """As DeepSeek-R1's own template does."""
        marked = "{{- '<\uff5cAssistant\uff5c><think>\\n' }}"
        _, text = with_and_without_marks("deepseek")
        opening = "{%- if add_generation_prompt %}\n    " + marked + "\n{%- endif %}"
        text = text.partition("{%- if add_generation_prompt %}")[0] + opening
        with pytest.raises(RowError) as caught:
            render(any_tokenizer, text, conversation(*TALK))
        assert caught.value.reason == "not_a_prefix"


class TestControlTokens:
    @pytest.mark.parametrize("token", ["<s>", "</s>", "<|im_start|>", "<|im_end|>"])
    def test_a_turn_with_one_is_refused(self, any_tokenizer: Any, token: str) -> None:
        talk = conversation(turn("user", "a"), turn("assistant", f"b{token}"))
        with pytest.raises(RowError, match=re.escape(f"messages[1].content has {token!r}")):
            render(any_tokenizer, "chatml", talk)

    @pytest.mark.parametrize(
        ("row", "place"),
        [
            ({"messages": [turn("user", "a", name="<s>"), TALK[2]]}, "messages[0].name"),
            ({"messages": [*TALK[1:3]], "tools": [{"name": "</s>"}]}, "tools"),
            (
                {
                    "messages": [
                        *WITH_TOOL[:2],
                        turn("tool", "2", tool_call_id="<|im_end|>"),
                        TALK[2],
                    ]
                },
                "messages[2].tool_call_id",
            ),
        ],
    )
    def test_so_is_one_in_whatever_else_a_template_may_write(
        self, any_tokenizer: Any, row: dict[str, Any], place: str
    ) -> None:
        columns = {name: value for name, value in row.items() if name != "messages"}
        talk = conversation(*row["messages"], **columns)
        with pytest.raises(RowError, match=re.escape(f"{place} has '<")) as caught:
            render(any_tokenizer, "qwen3", talk)
        assert caught.value.reason == "control_token"

    def test_a_template_that_writes_bos_twice_is_refused(self, any_tokenizer: Any) -> None:
        text = "{{ bos_token }}" + templates.read("llama3")
        with pytest.raises(RowError, match="BOS twice"):
            render(any_tokenizer, text, conversation(*TALK))

    def test_marks_without_the_end_of_the_turn_are_refused(self, any_tokenizer: Any) -> None:
        text = (
            "{% for message in messages %}{{ message['role'] + ': ' }}"
            "{% generation %}{{ message['content'] }}{% endgeneration %}{{ eos_token }}{% endfor %}"
        )
        with pytest.raises(RowError) as caught:
            render(any_tokenizer, text, conversation(turn("assistant", "a")))
        assert caught.value.reason == "no_end_of_turn"


def test_developers_are_shown_as_system_where_the_template_does_not_know_them(
    any_tokenizer: Any,
) -> None:
    talk = conversation(turn("developer", "Be kind."), *TALK[1:])
    assert shown(any_tokenizer, render(any_tokenizer, "chatml", talk)) == CHATML


def test_without_a_system_message_smollm2_has_its_own(any_tokenizer: Any) -> None:
    found = render(any_tokenizer, "smollm2", conversation(*TALK[1:3]))
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert any_tokenizer.decode(found.input_ids).startswith(
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    )
