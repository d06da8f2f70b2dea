"""Starts one process of a container: namespaces, mounts, credentials, exec. Standard library only, run by path.

`launch.py ORDER` reads what to do from the JSON file ORDER, which `runtime.Container` writes: make a new container, or
`enter` one, and execute a command in it. It stays outside as the parent of the process and ends with its status. Two
descriptors connect it to whoever ordered:

- `status`: a line `pid N`, the process's PID as this machine sees it, a line `error …` where it could not be executed,
  then end of file.
- `control`: when its other end closes, by will or because the owner died, the process is killed.

Every mount is made in a mount namespace of its own, so it goes with the last process and the machine never sees it.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID = 0x00020000, 0x04000000, 0x08000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x1, 0x2, 0x4, 0x8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
CANNOT_RUN = 125
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
OLD_ROOT = Path("/.old-root")

libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """What this machine does not let us do, and why."""


def call(what: str, function: Callable[..., int], *arguments: object) -> None:
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise Refused(f"{what}: {os.strerror(number)}")


def prctl(what: str, option: int, value: int) -> None:
    nothing = ctypes.c_ulong(0)
    call(what, libc.prctl, option, ctypes.c_ulong(value), nothing, nothing, nothing)


def mount(source: Path | str, target: Path, kind: str | None = None, flags: int = 0, options: str = "") -> None:
    encoded = [os.fsencode(value) if value is not None else None for value in (source, target, kind)]
    call(f"mount {source} at {target}", libc.mount, *encoded, ctypes.c_ulong(flags), options.encode())


def make_read_only(target: Path) -> None:
    kept = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("none", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def bind(source: Path, target: Path, *, read_only: bool) -> None:
    """Bind a file or a directory, making the mount point as container runtimes do."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.touch()
    # An image's files are within reach of whoever runs in the container, wherever this machine keeps them.
    for parent in target.parents:
        mode = parent.stat().st_mode
        if mode & 0o011 != 0o011:
            parent.chmod(mode | 0o011)
    mount(source, target, flags=MS_BIND)
    if read_only:
        make_read_only(target)


def make_root(hidden: list[tuple[str, int]], scratch: Path) -> Path:
    """An overlay over the machine's root file system, whose writable layer is memory of this namespace."""
    mount("tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    upper, work, root = scratch / "upper", scratch / "work", scratch / "root"
    for directory in (upper, work, root):
        directory.mkdir()
    for path, mode in hidden:
        directory = upper / path.lstrip("/")
        directory.mkdir(parents=True)
        directory.chmod(mode)
        os.setxattr(directory, "trusted.overlay.opaque", b"y")
    # By relative paths, which no comma in the directory's name can break.
    os.chdir(scratch)
    mount("overlay", root, "overlay", 0, f"lowerdir=/,upperdir={upper.name},workdir={work.name}")
    return root


def enter_root(root: Path) -> None:
    """Change to the new root. The machine's stays reachable at OLD_ROOT until `leave_old_root`."""
    old = root / OLD_ROOT.name
    old.mkdir()
    call("pivot_root", libc.pivot_root, os.fsencode(root), os.fsencode(old))
    os.chdir("/")


def leave_old_root() -> None:
    call("umount the machine's root", libc.umount2, os.fsencode(OLD_ROOT), MNT_DETACH)
    OLD_ROOT.rmdir()


def fill_root(creation: dict[str, Any]) -> None:
    mount("proc", Path("/proc"), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("sysfs", Path("/sys"), "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY)
    mount("tmpfs", Path("/dev"), "tmpfs", MS_NOSUID, "mode=755")
    for device in DEVICES:
        bind(OLD_ROOT / "dev" / device, Path("/dev") / device, read_only=False)
    for name, target in DEVICE_LINKS.items():
        (Path("/dev") / name).symlink_to(target)
    shared = Path("/dev/shm")
    shared.mkdir()
    mount("tmpfs", shared, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=1777")
    for absent in map(Path, creation["absent"]):
        if absent.is_dir():
            shutil.rmtree(absent)
        else:
            absent.unlink(missing_ok=True)
    # Shallow first, so that mount points nest (containerd and CRI-O sort likewise).
    for item in sorted(creation["binds"], key=lambda item: len(Path(item["target"]).parts)):
        bind(OLD_ROOT / item["source"].lstrip("/"), Path(item["target"]), read_only=item["read_only"])
    if creation["library_directories"]:
        # What NVIDIA's container toolkit does: name the directories first, make the loader's cache anew.
        names = Path("/etc/ld.so.conf.d/00-driver.conf")
        names.write_text("".join(f"{directory}\n" for directory in creation["library_directories"]))
        subprocess.run(["/sbin/ldconfig"], check=True)
    leave_old_root()
    if creation["read_only_root"]:
        make_read_only(Path("/"))


def become(order: dict[str, Any]) -> NoReturn:
    """Take the container's credentials and execute its program."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in range(last + 1):
        if capability not in order["capabilities"]:
            prctl("drop a capability", PR_CAPBSET_DROP, capability)
    os.setgroups([])
    os.setgid(order["group"])
    os.setuid(order["user"])
    if order["no_new_privileges"]:
        prctl("forbid new privileges", PR_SET_NO_NEW_PRIVS, 1)
    # After the change of credentials, which clears it.
    prctl("die with the parent", PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(order["directory"])
    os.umask(0o022)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvpe(order["command"][0], order["command"], order["environment"])
    except FileNotFoundError as error:
        raise Refused(f"exec {order['command'][0]}: not found in the container") from error


def create(creation: dict[str, Any]) -> None:
    """Make this process, PID 1 of its namespace, the first of a new container."""
    # Not in the parent: to pivot the root takes along every process of the mount namespace.
    for flag in (CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUTS):
        call("make a namespace", libc.unshare, flag)
    mount("none", Path("/"), flags=MS_REC | MS_PRIVATE)
    enter_root(make_root(creation["hidden"], Path(creation["scratch"])))
    fill_root(creation)
    name = creation["hostname"].encode()
    call("set the host name", libc.sethostname, name, ctypes.c_size_t(len(name)))


def enter_namespaces(pid: int) -> None:
    # Mount last: it takes /proc away.
    opened = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("ipc", "uts", "pid", "mnt")]
    for descriptor in opened:
        call("enter a namespace of the container", libc.setns, descriptor, 0)
        os.close(descriptor)


def wait(child: int, control: int) -> int:
    """Wait for the child and return its status as a shell would; kill it when `control` is closed."""
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(control, select.POLLIN)
    while ended not in (ready := [descriptor for descriptor, _events in poll.poll()]):
        if control in ready:
            poll.unregister(control)
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def main(order: dict[str, Any]) -> int:
    status, control = order["status"], order["control"]
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (status, control):
        os.set_inheritable(descriptor, False)
    try:
        if order["create"] is not None:
            call("make a PID namespace", libc.unshare, CLONE_NEWPID)
        else:
            enter_namespaces(order["enter"])
        child = os.fork()
        if child == 0:
            os.close(control)
            if order["create"] is not None:
                create(order["create"])
            become(order)
        os.write(status, f"pid {child}\n".encode())
    except Exception as error:
        os.write(status, f"error {' '.join(str(error).split())}\n".encode())
        os._exit(CANNOT_RUN)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: os.kill(child, received))
    os.close(status)
    # The container's process alone holds the ends of its standard streams.
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    return wait(child, control)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123
        loaded = json.load(file)
    sys.exit(main(loaded))
