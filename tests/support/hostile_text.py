"""Text that an attacker would give as a name, a label, a file name or an answer."""

import unicodedata
from typing import Final

HOSTILE: Final = (
    "\x1b[2J\x1b]0;owned\x07",  # clears the screen, sets the window's title
    "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",  # a link
    "\x9b31mred",  # the same with one character of C1
    "report\u202egpj.exe",  # reads as report exe.jpg
    "\u2066a\u2069\u200f\u061c",
    "a\u2028b\u2029c",
    "lone \udc9b surrogate",
    "line\nfinetune: all is well\rx",
    "[link=http://evil.example]rich[/link] [bold]",
    "</code><script>alert(1)</script>",
    "![x](http://evil.example/x.png) [y](javascript:alert(1))",
    "http://evil.example www.evil.example me@evil.example",
    "` `` ``` | \\| \\` end`",
    "\n---\nlicense: mit\n---\n# Heading\n```python\nimport os\n```\n",
    '"); import os; os.system("id") #',
    "'''\"\"\"\\",
    "{model} {max_source_length} {0} %s {{x}}",
    "*[no]: yes\n&anchor !!python/object:os.system [id] {a: b} # c",
    "$(id) `id` ; id | id > /tmp/x",
)


def steering(text: str) -> list[str]:
    """The characters of `text` with which it would steer a terminal: none is allowed."""
    return [
        f"U+{ord(each):04X}"
        for each in text
        if (unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") and each not in "\n\t")
        or unicodedata.bidirectional(each) in _DIRECTIONS
        or each in "\u200e\u200f\u061c\ufeff"
    ]


_DIRECTIONS: Final = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
