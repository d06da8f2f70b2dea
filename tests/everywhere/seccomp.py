"""Docker's default seccomp profile, from Docker's own Go module, compiled by libseccomp as runtimes do."""

import ctypes
import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.cluster import modules
from tests.everywhere import builds

from isolator_testing import debian

PROFILES = ("github.com/moby/profiles/seccomp", "v0.1.0", "default.json")
CAPABILITIES = {
    "CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}  # fmt: skip
"""What Docker and containerd give a container that asks for nothing: it decides which rules of the profile count."""

ARCHITECTURES = {"SCMP_ARCH_X86": 0x40000003, "SCMP_ARCH_X32": 0x4000003E, "SCMP_ARCH_ARM": 0x40000028}
GO_NAMES = {"x86_64": ("SCMP_ARCH_X86_64", "amd64"), "aarch64": ("SCMP_ARCH_AARCH64", "arm64")}
COMPARISONS = {"SCMP_CMP_NE": 1, "SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}
ALLOW = 0x7FFF0000
ERRNO = 0x00050000
UNKNOWN_CALL = -1  # __NR_SCMP_ERROR


class Comparison(ctypes.Structure):
    """struct scmp_arg_cmp."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def _is_in_force(rule: Mapping[str, Any], architecture: str) -> bool:
    """Docker's rule for `includes` and `excludes` (profiles/seccomp/seccomp_linux.go, setupSeccomp)."""
    includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
    kernel = tuple(int(number) for number in os.uname().release.split("-")[0].split(".")[:2])
    wanted = tuple(int(number) for number in includes.get("minKernel", "0").split("."))
    return (
        architecture in includes.get("arches", [architecture])
        and architecture not in excludes.get("arches", [])
        and CAPABILITIES.issuperset(includes.get("caps", []))
        and CAPABILITIES.isdisjoint(excludes.get("caps", []))
        and kernel >= wanted
    )


def _action(rule: Mapping[str, Any], errno: int) -> int:
    if rule["action"] == "SCMP_ACT_ALLOW":
        return ALLOW
    assert rule["action"] == "SCMP_ACT_ERRNO", rule
    return ERRNO | (rule.get("errnoRet") or errno)


def _comparison(argument: Mapping[str, Any]) -> Comparison:
    operator = COMPARISONS[argument["op"]]
    return Comparison(argument["index"], operator, argument["value"], argument.get("valueTwo", 0))


def _libseccomp() -> ctypes.CDLL:
    files = debian.packages("libseccomp2", suite="bookworm")
    return ctypes.CDLL(str(next(files.rglob("libseccomp.so.2"))))


@cache
def docker_filter() -> Path:
    """A file with the profile as instructions for the kernel (struct sock_filter).

    Raises debian.Unavailable and modules.programs.BuildError.
    """
    profile = json.loads(modules.file(*PROFILES).read_text())
    library = _libseccomp()
    machine, architecture = GO_NAMES[os.uname().machine]
    errno = profile["defaultErrnoRet"]
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(ERRNO | errno)))
    assert context.value, "seccomp_init failed"
    others = next(entry["subArchitectures"] for entry in profile["archMap"] if entry["architecture"] == machine)
    for other in others:
        _succeeds(library.seccomp_arch_add(context, ctypes.c_uint32(ARCHITECTURES[other])), other)
    for rule in profile["syscalls"]:
        if _is_in_force(rule, architecture):
            _add(library, context, rule, _action(rule, errno))
    target = builds.BUILD / "docker-seccomp.bpf"
    target.parent.mkdir(exist_ok=True)
    making = target.with_suffix(f".{os.getpid()}")
    with making.open("wb") as file:
        _succeeds(library.seccomp_export_bpf(context, file.fileno()), "seccomp_export_bpf")
    library.seccomp_release(context)
    return making.rename(target)


def _add(library: ctypes.CDLL, context: ctypes.c_void_p, rule: Mapping[str, Any], action: int) -> None:
    comparisons = [_comparison(argument) for argument in rule.get("args") or []]
    array = (Comparison * len(comparisons))(*comparisons)
    for name in rule["names"]:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number == UNKNOWN_CALL:
            continue  # newer than this libseccomp, which runtimes leave out too
        added = library.seccomp_rule_add_array(context, ctypes.c_uint32(action), number, len(comparisons), array)
        _succeeds(added, name)


def _succeeds(result: int, what: str) -> None:
    assert result == 0, f"libseccomp: {what}: {os.strerror(-result)}"
