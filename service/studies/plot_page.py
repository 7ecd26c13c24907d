"""A figure as a page of its own, with plotly.js inside: it can be saved and opened anywhere.

The Content-Security-Policy allows exactly the two scripts of the page, by their hashes. The figure
is data, which no browser executes.
"""

import hashlib
from base64 import b64encode
from functools import cache
from html import escape
from importlib.resources import files
from typing import Final

_SCRIPT: Final = (
    'const figure = JSON.parse(document.getElementById("figure").textContent);'
    'Plotly.newPlot("plot", figure.data, figure.layout, {responsive: true, displaylogo: false});'
)
_STYLE: Final = "html, body, #plot { height: 100%; margin: 0; }"
_NEEDS_EVAL: Final = frozenset({"parallel-coordinates"})
"""plotly.js draws them by WebGL, whose programs it compiles in the browser."""


def render(figure: str, title: str) -> bytes:
    """The page that shows this figure of plotly's, which is JSON."""
    # Within a script element only `<` could end it.
    data = figure.replace("<", "\\u003c")
    parts = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        '<body>\n<div id="plot"></div>\n<script>',
        _library(),
        f'</script>\n<script type="application/json" id="figure">{data}</script>\n'
        f"<script>{_SCRIPT}</script>\n</body>\n</html>\n",
    )
    return "".join(parts).encode()


def headers(name: str) -> dict[str, str]:
    """Of the page that shows the figure of this name."""
    scripts = [_hash_of_library(), _hash(_SCRIPT)]
    if name in _NEEDS_EVAL:
        scripts.append("'unsafe-eval'")
    return {
        "Content-Security-Policy": f"default-src 'none'; script-src {' '.join(scripts)}; "
        # plotly.js adds style elements, and makes images of the figure for its download button.
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


@cache
def _library() -> str:
    return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


@cache
def _hash_of_library() -> str:
    return _hash(_library())


def _hash(script: str) -> str:
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
