"""The commands of isolator-libsync."""

import json
from typing import Any

import structlog
from pydantic import Field

from isolator_core import settings as core
from isolator_core.errors import UserError
from isolator_libsync import service
from isolator_libsync.files import open_directory
from isolator_libsync.findings import Finding, NotRight, cannot_read
from isolator_libsync.keep import Wanted, examine_path, hold, make_directory, put_right, sync
from isolator_libsync.settings import NodeSettings, wanted
from isolator_libsync.uninstall import UninstallSettings, uninstall

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
        raise UserError(str(cannot_read(node.directory, error))) from error
    for finding in outcome.repaired:
        log.info("repaired", finding=finding.code, path=str(finding.path), found=finding.message)
    if outcome.remaining:
        raise UserError(str(outcome.remaining[0]))
    log.info("right", directory=str(node.directory), library_sha256=node.files[0].sha256)
    return 0


class CheckSettings(NodeSettings):
    """Settings of `check`."""

    json_: bool = Field(
        False, validation_alias="ISOLATOR_LIBSYNC_JSON", description="print one JSON object instead of a line a finding"
    )


def check(settings: CheckSettings) -> int:
    """Print what is wrong with the node, without touching it; 0 if nothing is, 1 otherwise."""
    node = wanted(settings)
    findings = examine_path(node)
    if settings.json_:
        print(json.dumps(_report(node, findings), indent=2))
    else:
        for finding in findings:
            print(finding)
    return 1 if findings else 0


def _report(node: Wanted, findings: list[Finding]) -> dict[str, object]:
    return {
        "right": not findings,
        "directory": str(node.directory),
        "files": {file.name: {"sha256": file.sha256, "bytes": len(file.content)} for file in node.files},
        "findings": [
            {"finding": finding.code, "path": str(finding.path), "message": finding.message} for finding in findings
        ],
    }


COMMANDS: list[core.Command[Any]] = [
    core.Command("once", "Make the node right, then end.", NodeSettings, once),
    core.Command("run", "Keep the node right until told to end.", service.RunSettings, service.run),
    core.Command(
        "check", "Print what is wrong with the node, a line each; status 1 if anything is.", CheckSettings, check
    ),
    core.Command(
        "uninstall",
        "Take the files off the node; refused while a pod of the node mounts them.",
        UninstallSettings,
        uninstall,
    ),
]


def main() -> int:
    """Entry point of `isolator-libsync`."""
    description = "Keeps the node's copy of libvgpu.so and its preload file right."
    return core.main("isolator-libsync", "ISOLATOR_LIBSYNC_", description, COMMANDS)
