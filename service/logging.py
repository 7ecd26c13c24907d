"""Structured logs for every process: structlog on top of the standard library's logging."""

import logging
import sys
import traceback
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo

from service.settings import Settings
from service.system import escaping
from service.system.masking import mask

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
]

_TALKATIVE = (
    # Logs its dialect for each request of /health/ready.
    "alembic.runtime.migration",
    # Logs each request that is passed on to MLflow; the access log has them already.
    "httpx",
)


def configure(settings: Settings) -> None:
    """One line per record on stderr, in the settings' format; our logs and the libraries' alike.

    What is bound with `structlog.contextvars.bound_contextvars(job_id=…)` is on every line.
    """
    structlog.configure(
        # Drop filtered records before formatting them.
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(settings.log_format),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for talkative in _TALKATIVE:
        logging.getLogger(talkative).setLevel(logging.WARNING)


def _renderers(log_format: str) -> list[Any]:
    if log_format == "json":
        return [structlog.processors.format_exc_info, _mask, structlog.processors.JSONRenderer()]
    colors = sys.stderr.isatty()
    return [
        _mask,
        _one_line_each,
        structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_traceback),
    ]


def _mask(_logger: Any, _method: str, record: EventDict) -> EventDict:
    return {name: mask(v) if isinstance(v, str) else v for name, v in record.items()}


def _one_line_each(_logger: Any, _method: str, record: EventDict) -> EventDict:
    """Escape line ends in texts, so that no value can forge a line of the log."""
    return {name: escaping.log_line(v) if isinstance(v, str) else v for name, v in record.items()}


def _traceback(stream: TextIO, info: ExcInfo) -> None:
    """Plain: the pretty ones print local variables, and with them secrets. Indented, so that no
    line of an exception's message looks like a record."""
    lines = "".join(traceback.format_exception(*info)).rstrip().split("\n")
    stream.write("\n" + "\n".join(f"    {escaping.line(mask(line))}" for line in lines))
