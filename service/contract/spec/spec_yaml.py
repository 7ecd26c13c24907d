"""Reads a spec in YAML, with the values of YAML 1.2: what looks like a number in JSON is one.

PyYAML implements YAML 1.1, in which `2e-5` is text, `no` is false and `2024-01-01` is a date.
"""

import re
from typing import Any, Final

import yaml

_MOST_NODES: Final = 100_000
"""Values of a document once every alias has been replaced with what it stands for."""
_SCALARS: Final = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}

_OWN_TAGS: Final = "tag:yaml.org,2002:"
_INDENT: Final = "begin the keys and entries of one level in the same column"
_TAG: Final = "put text that begins with `!` in quotation marks"
_WORDS: Final = (
    # A pattern of PyYAML's words, which are about its tokens → what is wrong, and what to do.
    (r"character '\\t' that", "a tab: indent with spaces alone"),
    (r"character '(?P<it>.)' that", "put text that begins with '{it}' in quotation marks"),
    (
        r"mapping values are not allowed",
        "a `:` that is not expected: put text that holds `: ` in quotation marks, write a space "
        f"after the colon of the key before, and {_INDENT}",
    ),
    (
        r"could not find expected ':'",
        "the key of {opened} has no `: ` after it: write `: ` after a key, and `- ` before an "
        "entry of a list",
    ),
    (r"quoted scalar, found unexpected", "the quotation mark of {opened} is never closed"),
    (
        r"escape character|hexadecimal numbers",
        "in double quotation marks `\\` begins a special character, and this is none: use single "
        "quotation marks, or write `\\\\` for `\\`",
    ),
    (r"expected ',' or '\]'", "before this, the `[` of {opened} needs a `,` or its `]`"),
    (r"expected ',' or '\}'", "before this, the `{{` of {opened} needs a `,` or its `}}`"),
    (
        r"<block end>, but found '-'",
        "an entry of a list among the keys of an object: indent it below its key",
    ),
    (
        r"<block end>, but found '\?'",
        "a key among the entries of a list: write `- ` before it, or indent it",
    ),
    (
        r"<block end>, but found '<block|'<document start>'",
        f"the indentation fits nothing above: {_INDENT}",
    ),
    (
        r"<block end>, but found",
        "something follows a value that has ended: put the whole text in quotation marks; in '…' "
        "an apostrophe is written twice",
    ),
    (
        r"the node content, but found '(?P<it>.+)'",
        "a value is missing before `{it}`, or text that begins with it needs quotation marks",
    ),
    (
        r"undefined alias '(?P<it>.+)'",
        "`*{it}` repeats a value, and none before it is named `&{it}`: put text that begins with "
        "`*` in quotation marks",
    ),
    (r"duplicate anchor '(?P<it>.+)'", "two values are named `&{it}`: rename one of them"),
    (
        r"scanning an (alias|anchor)",
        "`&` and `*` need a name of letters and digits: put other text that begins with them in "
        "quotation marks",
    ),
    (r"the tag '(?P<it>.+)'$", f"`{{it}}` is not a known tag: {_TAG}"),
    (r"tag handle|parsing a tag|scanning a tag", f"this is not a valid tag: {_TAG}"),
    (r"found another document", "a second document begins: give each a file of its own"),
    (
        r"scanning a block scalar",
        "something follows `|` or `>`: begin the text in the next line, indented",
    ),
    (r"scanning a directive|YAML directive|YAML document", "remove the line that begins with `%`"),
    (r"for merging", "`<<` takes an object or a list of objects, such as `*name`"),
    (
        r"(sequence entries|mapping keys) are not allowed",
        "a list or an object cannot begin here: begin it in a line of its own",
    ),
    (
        r"expected a (scalar|sequence|mapping) node",
        "the value does not have the type that its tag names: remove the tag (`!!…`)",
    ),
)


class SpecYamlError(ValueError):
    """The text is not a YAML document that can be a spec; the message says where and why."""


def parse(text: str) -> Any:
    """The one document of a YAML text, in the types of JSON. Raises SpecYamlError."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _require_small(node)
        return loader.construct_document(node)
    except SpecYamlError:
        raise
    except yaml.MarkedYAMLError as error:
        raise SpecYamlError(_described(error)) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        problem = f"the character U+{error.character:04X} is not allowed: remove it"
        raise SpecYamlError(f"line {line}, column {column}: {problem}") from error
    except RecursionError:
        raise SpecYamlError("it is nested too deeply") from None


class _Loader(yaml.SafeLoader):
    """SafeLoader with the types of JSON; keys are text, and each is given once."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        # Before construction, which adds the keys of a merge to the node itself.
        node = super().compose_mapping_node(anchor)
        _require_keys(node)
        return node

    def construct_object(self, node: yaml.Node, *given: Any, **options: Any) -> Any:
        try:
            return super().construct_object(node, *given, **options)
        except (ValueError, KeyError) as error:
            is_long = "digits" in str(error)
            problem = "the number has too many digits" if is_long else "expected a scalar node"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def construct_int(self, node: yaml.ScalarNode) -> int:
        # Not as in YAML 1.1, where 010 is eight.
        return int(self.construct_scalar(node))

    def construct_float(self, node: yaml.ScalarNode) -> float:
        text = str(self.construct_scalar(node))
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))

    def refuse(self, node: yaml.Node) -> None:
        tag = node.tag.replace(_OWN_TAGS, "!!")
        problem = f"`{tag}` has no value in JSON: write it as text"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


for _name, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(f"{_OWN_TAGS}{_name}", re.compile(rf"^(?:{_pattern})$"), _first)
_Loader.add_implicit_resolver(f"{_OWN_TAGS}merge", re.compile("^<<$"), ["<"])
_Loader.add_constructor(f"{_OWN_TAGS}int", _Loader.construct_int)
_Loader.add_constructor(f"{_OWN_TAGS}float", _Loader.construct_float)
for _tag in ("timestamp", "binary", "set", "omap", "pairs"):
    _Loader.add_constructor(f"{_OWN_TAGS}{_tag}", _Loader.refuse)


def _require_keys(node: yaml.MappingNode) -> None:
    """Raises for a key that is given twice: PyYAML would silently use the last."""
    seen: set[str] = set()
    for key, _ in node.value:
        if key.tag == f"{_OWN_TAGS}merge":
            continue
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(
                None, None, "a key must be text, not a list or an object", key.start_mark
            )
        key.tag = f"{_OWN_TAGS}str"  # in JSON the keys `1` and `true` are text as well
        if key.value in seen:
            problem = f"the key {key.value[:100]!r} is given twice: keep one of them"
            raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        seen.add(key.value)


def _require_small(root: yaml.Node) -> None:
    """Raises for aliases that would make a small document large, or contain themselves."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node) -> int:
        if id(node) in sizes:
            return sizes[id(node)]
        if id(node) in open_nodes:
            raise SpecYamlError("an alias contains itself")
        open_nodes.add(id(node))
        inner = node.value if isinstance(node, yaml.SequenceNode | yaml.MappingNode) else ()
        parts = (part for item in inner for part in (item if isinstance(item, tuple) else (item,)))
        total = 1 + sum(map(size, parts))
        open_nodes.discard(id(node))
        if total > _MOST_NODES:
            raise SpecYamlError(f"it has more than {_MOST_NODES:,} values")
        sizes[id(node)] = total
        return total

    size(root)


def _described(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"{_place(mark)}: " if mark is not None else ""
    words = f"{error.context}, {error.problem}".replace(_OWN_TAGS, "!!")
    for pattern, sentence in _WORDS:
        found = re.search(pattern, words)
        if found is not None:
            opened = _place(error.context_mark or mark)
            return where + sentence.format(**found.groupdict(), opened=opened)
    return where + (error.problem or error.context or "it is not valid YAML")


def _place(mark: yaml.Mark | None) -> str:
    return "the beginning" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"
