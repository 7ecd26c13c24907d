"""Runs a benchmark by name, or lists them: `python -m benchmarks [NAME [ARGUMENTS]]`."""

import ast
import runpy
import sys
from pathlib import Path
from typing import Final

NAMES: Final = (
    "attention_windows",
    "checkpoint_stall",
    "memory",
    "model_losses",
    "predictions",
    "searches",
    "start",
    "training_speed",
    "trl_losses",
    "trl_masks",
    "trl_speed",
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
    """The first paragraph of the module's docstring; nothing is imported for it."""
    source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(source)) or ""
    return " ".join(text.partition("\n\n")[0].split())


if __name__ == "__main__":
    sys.exit(main())
