"""The commands of isolator-libsync."""

from typing import Any

import structlog

from isolator_core import settings as core
from isolator_core.errors import UserError
from isolator_libsync import service
from isolator_libsync.files import open_directory
from isolator_libsync.findings import NotRight
from isolator_libsync.keep import hold, make_directory, put_right, sync
from isolator_libsync.settings import NodeSettings, wanted

log = structlog.get_logger()


def once(settings: NodeSettings) -> int:
    """Make the node right and say what was done. Raises UserError with one line where it cannot be."""
    node = wanted(settings)
    try:
        make_directory(node.directory)
        with open_directory(node.directory) as directory, hold(directory):
            outcome = put_right(directory, node)
            if not outcome.remaining:
                sync(directory, node)
    except NotRight as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"{node.directory}: cannot be opened: {error.strerror}") from error
    for finding in outcome.repaired:
        log.info("repaired", finding=finding.code, path=str(finding.path), found=finding.message)
    if outcome.remaining:
        raise UserError(str(outcome.remaining[0]))
    log.info("right", directory=str(node.directory), library_sha256=node.files[0].sha256)
    return 0


COMMANDS: list[core.Command[Any]] = [
    core.Command("once", "Make the node right, then end.", NodeSettings, once),
    core.Command("run", "Keep the node right until told to end.", service.RunSettings, service.run),
]


def main() -> int:
    """Entry point of `isolator-libsync`."""
    description = "Keeps the node's copy of libvgpu.so and its preload file right."
    return core.main("isolator-libsync", "ISOLATOR_LIBSYNC_", description, COMMANDS)
