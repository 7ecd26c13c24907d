"""Escapes text of users, stages and other servers for the place where it is shown.

One function for each place. What is escaped stays readable: an escape character is shown as
`\\x1b`, a character that reverses the direction of text as `\\u202e`.
"""

import json
import re
import shlex
from typing import Any, Final

import yaml

_STEERING: Final = (
    # C0 without tab and newline, delete, C1.
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"
    # The direction of text, line and paragraph separators, annotations, the byte order mark.
    r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb"
    # Lone surrogates, which no encoding has.
    r"\ud800-\udfff"
)
_IN_TEXT: Final = re.compile(f"[{_STEERING}]")
_IN_LINE: Final = re.compile(rf"[\t\n{_STEERING}]")
_SHORT: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_MARKDOWN: Final = re.compile(
    r"[\\`*\[\]<>#!|~&$^]|(?<![^\W_])_|_(?![^\W_])"
    # Addresses that become links by themselves; what begins a list, or underlines a heading.
    r"|:(?=/)|(?<=\b[wW]{3})\.|^[-+=]|(?<=^\d)[.)](?=\s|$)|(?<=^\d\d)[.)](?=\s|$)"
)
_BACKTICKS: Final = re.compile("`+")
_MOST_IN_LOG: Final = 2000


def terminal(text: str) -> str:
    """Text of several lines: only tabs and line ends keep their effect."""
    return _IN_TEXT.sub(_shown, text.replace("\r\n", "\n"))


def line(text: str) -> str:
    """Text that stays in its line, for a terminal or a message."""
    return _IN_LINE.sub(_shown, text)


def log_line(text: str) -> str:
    """A value in a log: one line of bounded length."""
    if len(text) <= _MOST_IN_LOG:
        return line(text)
    return f"{line(text[:_MOST_IN_LOG])}… ({len(text)} characters)"


def json_line(value: Any) -> str:
    """The value as one line of JSON that is readable, and safe for a terminal."""
    # Escapes of JSON: what a program reads is the value itself.
    return _IN_LINE.sub(
        lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False)
    )


def markdown(text: str) -> str:
    """Text in a paragraph, a heading or a table cell of Markdown: no markup, link or HTML."""
    escaped = _MARKDOWN.sub(r"\\\g<0>", _one_line(text))
    # Renderers that make links of addresses join the text first: a word joiner stays between.
    return escaped.replace("@", "@\N{WORD JOINER}")


def markdown_code(text: str) -> str:
    """Text as a code span of Markdown, between as many backticks as it needs."""
    shown = _one_line(text)
    if not shown:
        return "` `"
    fence = "`" * (1 + _longest_run(shown))
    blank = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{blank}{shown}{blank}{fence}"


def markdown_cell(text: str) -> str:
    """Text as a code span in a table, where a vertical bar would end the cell."""
    return markdown_code(text).replace("|", "\\|")


def markdown_block(code: str, language: str = "") -> str:
    """Lines as a fenced code block of Markdown."""
    fence = "`" * max(3, 1 + _longest_run(code))
    return f"{fence}{language}\n{terminal(code).rstrip()}\n{fence}"


def yaml_document(value: Any) -> str:
    """The value as YAML that yields the same value, without characters that steer a terminal."""
    text = _dumped(value, allow_unicode=True)
    if _IN_TEXT.search(text):
        text = _dumped(value, allow_unicode=False)
    return text.rstrip("\n")


class _Dumper(yaml.SafeDumper):
    """Line ends within a string are escaped: readers of front matter look for a line of `---`."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = '"' if "\n" in text else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _Dumper.represent_text)


def _dumped(value: Any, *, allow_unicode: bool) -> str:
    return str(yaml.dump(value, Dumper=_Dumper, allow_unicode=allow_unicode, sort_keys=False))


def python_literal(text: str) -> str:
    """A string literal of Python that is the text."""
    return json_line(text)


def shell_word(text: str) -> str:
    """One word of a command that a user may copy into a shell."""
    return shlex.quote(line(text))


def _shown(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def _one_line(text: str) -> str:
    return line(" ".join(text.split()))


def _longest_run(text: str) -> int:
    return max(map(len, _BACKTICKS.findall(text)), default=0)
