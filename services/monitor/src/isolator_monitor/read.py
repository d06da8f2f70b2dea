"""`isolator-monitor read`."""

import signal
import sys

import structlog

from isolator_monitor import link
from isolator_monitor.local_node import local_node
from isolator_monitor.settings import ReadSettings

_log = structlog.get_logger()


def read(chosen: ReadSettings) -> int:
    """Answer the server until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        link.answer(local_node(chosen, chosen.nvml_patience), chosen.reader_socket)
    except (SystemExit, KeyboardInterrupt):
        _log.info("stopped")
    return 0
