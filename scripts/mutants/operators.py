"""All small changes ("mutants") of a source file that its tests should notice.

A mutant replaces one expression or statement: another comparison, arithmetic or boolean operator, a
number plus one, a flipped flag or condition, `return None`, a call that is left out, `min` for
`max`. Annotations, decorators, strings and calls of a logger stay as they are, and so do the
constants at the top of a module: a test could only repeat the number that someone chose.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

_COMPARISONS: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_FUNCTIONS: Final = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "floor": "ceil",
    "ceil": "floor",
}
_ATOMS: Final = (ast.Name, ast.Attribute, ast.Constant)
_LOGGERS: Final = {"log", "_log", "logger"}


@dataclass(frozen=True)
class Mutant:
    path: str
    line: int
    before: str
    """The lines that change, as one."""
    after: str
    source: str
    """The whole file with the change."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}\n  - {self.before}\n  + {self.after}"


def mutants_of(path: str, source: str) -> list[Mutant]:
    """In the order of the file, the same ones each time."""
    found = [
        _mutant(path, source, place, replacement)
        for node in _mutable(ast.parse(source))
        for place, replacement in _replacements(node)
    ]
    return sorted(found, key=lambda mutant: mutant.line)


def _mutable(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _stays(child, node):
                yield from _mutable(child)


def _stays(child: ast.AST, node: ast.AST) -> bool:
    # Positions within an f-string are only right from Python 3.12 on.
    if isinstance(child, ast.JoinedStr) or _is_logging(child):
        return True
    return isinstance(node, ast.Module) and _is_constant(child)


def _replacements(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """What is replaced, which is `node` or a part of it, and by what."""
    for replacement in (*_of_operators(node), *_of_values(node), *_of_statements(node)):
        yield node, replacement
    for condition in _conditions(node):
        yield condition, ast.UnaryOp(ast.Not(), condition)


def _of_operators(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=operators):
            for place, operator in enumerate(operators):
                for other in _COMPARISONS[type(operator)]:
                    yield _with(node, ops=[*operators[:place], other(), *operators[place + 1 :]])
        case ast.BoolOp(op=ast.And()):
            yield _with(node, op=ast.Or())
        case ast.BoolOp():
            yield _with(node, op=ast.And())
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in _ARITHMETIC:
            yield _with(node, op=_ARITHMETIC[type(operator)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand


def _of_values(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Constant(value=bool(value)):
            yield _with(node, value=not value)
        case ast.Constant(value=int(value) | float(value)):
            yield _with(node, value=value + 1)
        case ast.Name(id=name) if name in _FUNCTIONS:
            yield _with(node, id=_FUNCTIONS[name])
        case ast.Attribute(attr=name) if name in _FUNCTIONS:
            yield _with(node, attr=_FUNCTIONS[name])


def _of_statements(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield _with(node, value=ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()


def _conditions(node: ast.AST) -> list[ast.expr]:
    """Those in which no operator is replaced already."""
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            conditions = [test]
        case ast.comprehension(ifs=tests):
            conditions = tests
        case _:
            conditions = []
    mutated = ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant
    return [condition for condition in conditions if not isinstance(condition, mutated)]


def _is_constant(statement: ast.AST) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name.isupper()
        case _:
            return False


def _is_logging(statement: ast.AST) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in _LOGGERS
        case _:
            return False


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _mutant(path: str, source: str, place: Any, replacement: ast.AST) -> Mutant:
    lines = source.encode().splitlines(keepends=True)  # columns count bytes
    first, last = place.lineno - 1, place.end_lineno
    text = ast.unparse(replacement)
    if isinstance(replacement, ast.expr) and not isinstance(replacement, _ATOMS):
        text = f"({text})"
    changed = (
        lines[first][: place.col_offset] + text.encode() + lines[last - 1][place.end_col_offset :]
    )
    return Mutant(
        path,
        place.lineno,
        _one_line(b"".join(lines[first:last])),
        _one_line(changed),
        b"".join([*lines[:first], changed, *lines[last:]]).decode(),
    )


def _one_line(text: bytes) -> str:
    return " ".join(text.decode().split())
