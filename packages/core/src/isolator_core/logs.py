"""JSON logs on standard error: one object a line, standard output stays for what a command prints."""

import logging
import sys
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import structlog

Level = Literal["debug", "info", "warning", "error"]


def _json(line: object, default: Callable[[Any], Any]) -> str:
    """A line as JSON; `default` turns what JSON does not know into text."""
    return msgspec.json.encode(line, enc_hook=default).decode()


def configure(service: str, level: Level) -> None:
    """Set up structlog for the process. Each line has `timestamp`, `level`, `service` and `event`."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(service=service)
