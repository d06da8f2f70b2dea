"""`isolator-libsync uninstall`: take the files off the node, once no pod needs them."""

import contextlib
import os
import stat
from pathlib import Path

import structlog
from pydantic import Field

from isolator_core.errors import SettingsError, UserError
from isolator_core.names import CONTAINERS_DIR, LIBRARY_FILE, PRELOAD_FILE
from isolator_libsync import node_mark, pods
from isolator_libsync.api import connect
from isolator_libsync.files import Directory, open_directory
from isolator_libsync.findings import NotRight, cannot_read, cannot_write
from isolator_libsync.keep import hold
from isolator_libsync.replace import temporary_name
from isolator_libsync.settings import DirectorySettings

log = structlog.get_logger()


class UninstallSettings(DirectorySettings, node_mark.MarkSettings):
    """Settings of `uninstall`."""

    pods_file: Path | None = Field(
        None,
        description="PodList in JSON of the node's pods, as `kubectl get pods -A -o json --field-selector"
        " spec.nodeName=NODE` prints it; without it the Kubernetes API is asked for the pods of --node-name",
    )
    force: bool = Field(False, description="do not ask which pods mount the files")


def uninstall(settings: UninstallSettings) -> int:
    """Remove the files. Raises UserError with one line while a pod of the node mounts them."""
    mark = node_mark.from_settings(settings)
    if not settings.force:
        _refuse_while_named(settings)
    try:
        with open_directory(settings.host_dir) as directory, hold(directory):
            # First, so that nothing more is sent here.
            _remove_mark(mark)
            _remove_files(directory)
    except FileNotFoundError:
        _remove_mark(mark)
        log.info("nothing_to_remove", directory=str(settings.host_dir))
    except NotRight as error:
        raise UserError(f"{error}: end it first, or it puts the files back") from error
    except OSError as error:
        raise UserError(str(cannot_read(settings.host_dir, error))) from error
    else:
        _remove_directory(settings.host_dir)
    return 0


def _remove_mark(mark: node_mark.Mark | None) -> None:
    if mark is not None:
        mark.remove()


def _refuse_while_named(settings: UninstallSettings) -> None:
    if settings.pods_file is not None:
        of_node = pods.from_file(settings.pods_file)
    elif settings.node_name is not None:
        of_node = pods.from_api(connect(settings), settings.node_name)
    else:
        raise SettingsError(
            "--node-name (ISOLATOR_LIBSYNC_NODE_NAME) or --pods-file (ISOLATOR_LIBSYNC_PODS_FILE) is required,"
            " to see which pods mount the files; --force does not ask"
        )
    naming = pods.naming(of_node, settings.host_dir)
    if naming:
        raise UserError(
            f"{settings.host_dir}: not removed, since pods of this node mount the files: {', '.join(naming)};"
            " their containers would start without a limit. Remove these pods first, or give --force"
        )


def _remove_files(directory: Directory) -> None:
    """The reverse of installation: first the preload file, which names the library."""
    for name in (PRELOAD_FILE, LIBRARY_FILE):
        for present in (name, temporary_name(name)):
            try:
                _remove(directory, present)
            except OSError as error:
                raise UserError(str(cannot_write(directory.path / present, "remove", error))) from error
    with contextlib.suppress(OSError):
        # Regions may lie in it: they are the monitor's to remove.
        os.rmdir(CONTAINERS_DIR, dir_fd=directory.fd)
    os.fsync(directory.fd)


def _remove(directory: Directory, name: str) -> None:
    try:
        status = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        os.rmdir(name, dir_fd=directory.fd)
    else:
        os.unlink(name, dir_fd=directory.fd)
    log.info("removed", path=str(directory.path / name))


def _remove_directory(path: Path) -> None:
    try:
        path.rmdir()
    except OSError as error:
        log.info("directory_kept", directory=str(path), reason=error.strerror)
    else:
        log.info("removed", path=str(path))
