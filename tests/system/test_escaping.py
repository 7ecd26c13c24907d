"""Every place where text is shown, with text that was made to break out of it."""

import ast
import json
import shlex
from collections.abc import Callable

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from service.system import escaping
from tests.support.hostile_text import HOSTILE, steering
from tests.support.rendered_markdown import elements, text_of

_ANY_TEXT = st.one_of(
    st.text(st.characters(codec=None), max_size=40),
    st.lists(st.sampled_from(HOSTILE), max_size=3).map("".join),
    st.text("`|\\*_[]()<>#!&~:/.@wW1-=+ \n\tab{}\"'$", max_size=30),
)


class TestTerminal:
    @pytest.mark.parametrize("text", HOSTILE)
    @pytest.mark.parametrize(
        "escape", [escaping.terminal, escaping.line, escaping.log_line, escaping.json_line]
    )
    def test_nothing_steers_it(self, text: str, escape: Callable[[str], str]) -> None:
        assert steering(escape(text)) == []

    @given(_ANY_TEXT)
    def test_any_text(self, text: str) -> None:
        assert steering(escaping.terminal(text)) == []
        assert steering(escaping.line(text)) == []
        assert not {"\n", "\t"} & set(escaping.line(text))

    def test_what_is_shown(self) -> None:
        assert escaping.terminal("a\tb\r\n\x1b[1m\x9b\u202e\udc80é😀") == (
            "a\tb\n\\x1b[1m\\x9b\\u202e\\udc80é😀"
        )
        assert escaping.line("a\tb\r\nc") == "a\\tb\\r\\nc"

    @pytest.mark.parametrize("text", ["Zürich", "日本語", "👩‍👩‍👧 🏴󠁧󠁢󠁥󠁮󠁧󠁿", "می‌خواهم", "שלום"])
    def test_text_of_all_languages_stays(self, text: str) -> None:
        assert escaping.terminal(text) == text

    def test_a_log_s_value_is_bounded(self) -> None:
        assert escaping.log_line("x" * 5000) == "x" * 2000 + "… (5000 characters)"


@given(_ANY_TEXT)
def test_json_yields_the_value(text: str) -> None:
    shown = escaping.json_line({text: [text]})
    assert json.loads(shown) == {text: [text]}
    assert steering(shown) == []


@given(_ANY_TEXT)
def test_python_yields_the_text(text: str) -> None:
    literal = escaping.python_literal(text)
    assert ast.literal_eval(literal) == text
    assert steering(literal) == []
    assert "\n" not in literal


@given(_ANY_TEXT)
def test_yaml_yields_the_text(text: str) -> None:
    # A surrogate is not a character of YAML; its library replaces a pair of them.
    text = text.encode("utf-8", "replace").decode()
    document = escaping.yaml_document({"name": text, "tags": [text]})
    assert yaml.safe_load(document) == {"name": text, "tags": [text]}
    assert steering(document) == []
    assert "\n---" not in document


@given(_ANY_TEXT)
def test_a_shell_gets_one_word(text: str) -> None:
    assert shlex.split(escaping.shell_word(text)) == [escaping.line(text)]


class TestMarkdown:
    @pytest.mark.parametrize(
        ("place", "expected"),
        [
            ("{}", ["p"]),
            ("# {}\n", ["h1"]),
            ("- {}\n", ["ul", "li"]),
            ("Of {}.\nMore.", ["p"]),
            ("Of `x` {} and `y`", ["p", "code", "code"]),
        ],
    )
    @given(_ANY_TEXT)
    def test_text_has_no_markup(self, place: str, expected: list[str], text: str) -> None:
        assert elements(place.format(escaping.markdown(f"a{text}z"))) == expected

    @given(_ANY_TEXT)
    def test_text_alone_has_no_markup(self, text: str) -> None:
        assert elements(escaping.markdown(text)) in (["p"], [])

    @given(_ANY_TEXT)
    def test_code_is_one_span(self, text: str) -> None:
        assert elements(f"Of {escaping.markdown_code(text)}.") == ["p", "code"]

    @given(_ANY_TEXT)
    def test_a_cell_stays_in_its_table(self, text: str) -> None:
        cells = f"{escaping.markdown_cell(text)} | {escaping.markdown(text)}"
        made = elements(f"| a | b |\n|---|---|\n| {cells} |\n\nafter\n")
        assert made == ["table", "thead", "tr", "th", "th", "tbody", "tr", "td", "code", "td", "p"]

    @given(_ANY_TEXT)
    def test_a_block_ends_where_it_should(self, text: str) -> None:
        made = elements(f"{escaping.markdown_block(text, 'python')}\n\nafter")
        assert made == ["pre", "code", "p"]

    def test_the_renderer_finds_markup(self) -> None:
        assert elements("[x](y) <b>z</b> www.a.de") == ["p", "a", "b", "a"]

    def test_is_readable(self) -> None:
        assert escaping.markdown("a_b 3.5 my-model") == "a_b 3.5 my-model"
        assert text_of(escaping.markdown("1. [x](y) *z* 2 < 3")) == "1. [x](y) *z* 2 < 3"
        assert escaping.markdown_code("a`b") == "``a`b``"
        assert text_of(escaping.markdown_code("`a|b`")) == "`a|b`"
