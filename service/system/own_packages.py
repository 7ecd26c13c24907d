"""Where Python finds the service's packages, in this process and in those that it starts.

`service`, `worker` and `migrations` are names that other packages have too. Installed, they lie in
`finetune_service`, a name of our own; in a checkout, in its top folder. This folder comes first on
the path of each of our processes, and the folder that a process is started in is not on it.
"""

import os
import site
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[2].resolve()
"""Behind every link, so that a running service does not follow one that is changed."""
_SEARCH_PATH: Final = "PYTHONPATH"
_SAFE_PATH: Final = "PYTHONSAFEPATH"


def come_first() -> None:
    """In this process, and in all that inherit its environment. Before anything is started."""
    by_current_folder = {str(f.absolute()) for f in _given(os.environ) if not f.is_absolute()}
    os.environ |= variables(os.environ)
    unwanted = {str(FOLDER), *by_current_folder} - set(site.getsitepackages())
    sys.path[:] = [str(FOLDER), *(entry for entry in sys.path if entry not in unwanted)]


def variables(environ: Mapping[str, str], admits: Callable[[Path], bool] = bool) -> dict[str, str]:
    """For a process that is started: our folder, then those of PYTHONPATH in `environ`. Those that
    `admits` refuses are left out, and those that depend on the current folder."""
    absolute = (folder for folder in _given(environ) if folder.is_absolute())
    others = [folder for folder in absolute if folder.resolve() != FOLDER and admits(folder)]
    return {_SEARCH_PATH: os.pathsep.join(map(str, [FOLDER, *others])), _SAFE_PATH: "1"}


def python(module: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """The command line of a process of ours. With -P, because files in its working directory are
    data and must not be imported."""
    return [sys.executable, "-P", *options, "-m", module, *arguments]


def _given(environ: Mapping[str, str]) -> list[Path]:
    """The folders of PYTHONPATH; an empty one is the current folder."""
    given = environ.get(_SEARCH_PATH)
    return [Path(folder) for folder in given.split(os.pathsep)] if given else []
