"""Structured logs for every process: structlog on top of the standard library's logging."""

import logging
import sys
from typing import Any

import structlog

from service.settings import Settings

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
]


def configure(settings: Settings) -> None:
    """One line per record on stderr, in the settings' format; our logs and the libraries' alike.

    What is bound with `structlog.contextvars.bound_contextvars(job_id=…)` is on every line.
    """
    structlog.configure(
        # What nobody will see is dropped before anything is made of it.
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
    # It tells which dialect it speaks each time somebody asks /health/ready.
    logging.getLogger("alembic.runtime.migration").setLevel(logging.WARNING)


def _renderers(log_format: str) -> list[Any]:
    if log_format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    # Plain tracebacks: the pretty ones print local variables, and with them secrets.
    plain = structlog.dev.plain_traceback
    colors = sys.stderr.isatty()
    return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
