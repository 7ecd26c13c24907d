"""Runs a benchmark by name, or lists them: `python -m benchmarks [NAME [ARGUMENTS]]`."""

import ast
import runpy
import sys
from pathlib import Path
from typing import Final

NAMES: Final = (
    "attention_kernels",
    "attention_windows",
    "checkpoint_stall",
    "choices",
    "long_run",
    "memory",
    "model_losses",
    "predictions",
    "searches",
    "start",
    "training_speed",
    "trl",
)


def main() -> int:
    if len(sys.argv) == 1:
        for name in NAMES:
            print(f"  make bench NAME={name:<17} {_summary(name)}")
        return 0
    name = sys.argv[1]
    if name not in NAMES:
        print(f"There is no benchmark {name!r}. Choose from {', '.join(NAMES)}.", file=sys.stderr)
        return 2
    sys.argv = [f"benchmarks.{name}", *sys.argv[2:]]
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    return 0


def _summary(name: str) -> str:
    """The first paragraph of the docstring of the module, or of the folder's `__main__`; nothing
    is imported for it."""
    path = Path(__file__).with_name(name)
    file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    source = file.read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(source)) or ""
    return " ".join(text.partition("\n\n")[0].split())


if __name__ == "__main__":
    sys.exit(main())
