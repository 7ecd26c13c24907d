"""What torch.compile and Triton need: a C and a C++ compiler, and Python's headers."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Final

from worker.doctor.check import Context, Finding, ok, warning

_SECONDS: Final = 60
# As Triton's launchers, and as the code that torch's inductor writes for a CPU.
_C: Final = "#include <Python.h>\nint number(void) { return PY_MAJOR_VERSION; }\n"
_CPP: Final = "#include <vector>\nint number() { return std::vector<int>(3).size(); }\n"
_REMEDY: Final = (
    "Install them: `apt install gcc g++ libc6-dev python3-dev`, or the like of your system "
    "(the worker's image has them). Trainings without torch.compile, torchao and Triton kernels "
    "need none."
)


def compiler(context: Context) -> Finding:
    include = Path(sysconfig.get_path("include"))
    found = {"C": _first("CC", ("gcc", "clang", "cc")), "C++": _first("CXX", ("g++", "clang++"))}
    missing = [f"no {language} compiler" for language, path in found.items() if path is None]
    if not (include / "Python.h").is_file():
        missing.append(f"no Python.h in {include}")
    if missing:
        return _warn(", ".join(missing), "torch.compile and Triton build code where they run.")
    assert found["C"] is not None
    assert found["C++"] is not None
    faults = [
        _fault(found["C"], "c", _C, context.scratch, (f"-I{include}",)),
        _fault(found["C++"], "cpp", _CPP, context.scratch, ("-fopenmp",)),
    ]
    if any(faults):
        return _warn("a compiler is there and fails", "\n".join(filter(None, faults)))
    return ok(f"{found['C']}, {found['C++']} and Python.h compile a library each", **found)


def _warn(summary: str, reason: str) -> Finding:
    return warning(summary, reason=reason, remedy=_REMEDY)


def _first(variable: str, names: tuple[str, ...]) -> str | None:
    """What the variable names, else the first that is installed."""
    wanted = os.environ.get(variable)
    return shutil.which(wanted) if wanted else next(filter(None, map(shutil.which, names)), None)


def _fault(compiler: str, suffix: str, code: str, folder: Path, options: tuple[str, ...]) -> str:
    """Why a small shared library cannot be made; empty when it can."""
    source = folder / f"number.{suffix}"
    source.write_text(code, encoding="utf-8")
    command = [compiler, str(source), "-shared", "-fPIC", "-o", f"{source}.so", *options]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
    )
    return f"{compiler}: {done.stderr[-1000:].strip()}" if done.returncode else ""
