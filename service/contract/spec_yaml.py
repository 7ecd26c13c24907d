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
        raise SpecYamlError(f"the character U+{error.character:04X} is not allowed") from error
    except RecursionError:
        raise SpecYamlError("it is nested too deeply") from None
    except (ValueError, KeyError) as error:
        raise SpecYamlError("a value does not have the type that its tag names") from error


class _Loader(yaml.SafeLoader):
    """SafeLoader with the types of JSON; keys are text, and each is given once."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        # Before construction, which adds the keys of a merge to the node itself.
        node = super().compose_mapping_node(anchor)
        _require_keys(node)
        return node

    def construct_int(self, node: yaml.ScalarNode) -> int:
        # Not as in YAML 1.1, where 010 is eight.
        return int(self.construct_scalar(node))

    def construct_float(self, node: yaml.ScalarNode) -> float:
        text = str(self.construct_scalar(node))
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))

    def refuse(self, node: yaml.Node) -> None:
        problem = f"the tag {node.tag!r} has no value in JSON"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


for _name, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_name}", re.compile(rf"^(?:{_pattern})$"), _first
    )
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile("^<<$"), ["<"])
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_float)
for _tag in ("timestamp", "binary", "set", "omap", "pairs"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.refuse)


def _require_keys(node: yaml.MappingNode) -> None:
    """Raises for a key that is given twice, of which PyYAML would use the last."""
    seen: set[str] = set()
    for key, _ in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            continue
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(
                None, None, "a key must be text", key.start_mark
            )
        key.tag = "tag:yaml.org,2002:str"  # in JSON the keys `1` and `true` are text as well
        if key.value in seen:
            problem = f"the key {key.value[:100]!r} is given twice"
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
    where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    problem = error.problem or error.context or "it is not valid YAML"
    if problem.startswith("but "):
        problem = f"{error.context}, {problem}"
    return f"{problem}{where}"
