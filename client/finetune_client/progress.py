"""How far a job is, while `wait` waits: a bar with tqdm, or a line for each change without it."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

Json = dict[str, Any]
_WHOLE: Final = 100.0


@contextmanager
def shown(*, wanted: bool) -> Iterator[Callable[[Json], None]]:
    """A function to call with each page of the job."""
    if not wanted:
        yield lambda _page: None
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a notebook without ipywidgets has the bar as text
            from tqdm.auto import tqdm
    except ImportError:
        yield _Lines().show
        return
    with tqdm(total=_WHOLE, bar_format="{desc} {bar} {percentage:3.0f}% {elapsed}") as bar:

        def show(page: Json) -> None:
            bar.set_description_str(_words(page), refresh=False)
            bar.n = _percent(page)
            bar.refresh()

        yield show


class _Lines:
    def __init__(self) -> None:
        self._last = ""

    def show(self, page: Json) -> None:
        line = f"{_words(page)} {_percent(page):.0f}%"
        if line != self._last:
            print(line, file=sys.stderr)  # noqa: T201
        self._last = line


def _words(page: Json) -> str:
    """Control characters of a name would change what a terminal shows."""
    text = f"{page.get('name') or page['id']}: {page['state']} {page['stage']}"
    return "".join(each if each.isprintable() else "?" for each in text)


def _percent(page: Json) -> float:
    if page["state"] == "succeeded":
        return _WHOLE
    return float((page.get("progress") or {}).get("percent") or 0.0)
