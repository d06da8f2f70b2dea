"""The library against the node: symbol versions, SELinux labels, mounts."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from isolator_libsync import library as library_module
from isolator_libsync import mounts, selinux
from isolator_testing import tools

MACHINE = os.uname().machine


def libc() -> Path:
    """The libc of this machine, where its own loader finds it."""
    text = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    return Path(next(line.split()[2] for line in text.splitlines() if "libc.so.6" in line))


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A library that needs GLIBC_9.99, of a libc built for the purpose."""
    compiler = tools.require("cc", package="gcc")
    source, versions, stand_in = tmp_path / "libc.c", tmp_path / "versions", tmp_path / "libc.so.6"
    source.write_text("int from_the_future(void) { return 1; }\n")
    versions.write_text("GLIBC_9.99 { global: from_the_future; };\n")
    flags = ["-shared", "-fPIC", "-nostdlib"]
    subprocess.run(
        [compiler, *flags, "-Wl,-soname,libc.so.6", f"-Wl,--version-script={versions}", source, "-o", stand_in],
        check=True,
    )
    user, built = tmp_path / "user.c", tmp_path / "libvgpu.so"
    user.write_text("int from_the_future(void);\nint use(void) { return from_the_future(); }\n")
    subprocess.run([compiler, *flags, user, stand_in, "-o", built], check=True)
    return built


@pytest.fixture
def node_root(tmp_path: Path):
    """Make a view of a node whose libc lies in one of the usual places; `lib64` is a link there, as on most systems."""

    def make(folder: str) -> Path:
        root = tmp_path / "host-root"
        (root / folder).mkdir(parents=True)
        shutil.copy(libc(), root / folder / "libc-of-the-node.so")
        (root / folder / "libc.so.6").symlink_to("libc-of-the-node.so")
        if folder == "usr/lib64":
            (root / "lib64").symlink_to("usr/lib64")
        return root

    return make


@pytest.mark.parametrize(
    "folder", ["lib64", "usr/lib64", f"lib/{MACHINE}-linux-gnu", f"usr/lib/{MACHINE}-linux-gnu", "lib"]
)
def test_a_library_that_suits_the_node_is_installed(libsync, keep, right, host_dir, library, node_root, folder) -> None:
    libsync("once", *keep, "--host-root", node_root(folder))
    assert right(host_dir, library)


def test_a_library_that_needs_more_than_the_node_has_is_not(
    libsync, keep, error_line, host_dir, newer, node_root
) -> None:
    flags = (*keep, "--library", newer, "--host-root", node_root("lib64"))
    line = error_line(libsync("once", *flags, status=1))
    assert line == f"{newer}: needs what this node's libraries do not have: libc.so.6: GLIBC_9.99"
    assert list(host_dir.iterdir()) == []
    assert "GLIBC_9.99" in libsync("check", *flags, status=1).stdout


def test_nothing_is_concluded_where_the_nodes_libc_is_not_seen(libsync, keep, right, host_dir, newer, tmp_path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "node_loader_unknown" in libsync("once", *keep, "--library", newer, "--host-root", empty).stderr
    assert right(host_dir, newer)


def test_a_link_out_of_the_view_is_not_followed(newer: Path, tmp_path: Path) -> None:
    """It would lead to the container's own libc, which says nothing about the node."""
    root = tmp_path / "host-root"
    (root / "lib64").mkdir(parents=True)
    (root / "lib64" / "libc.so.6").symlink_to(libc())
    shared_object = library_module.load(newer).shared_object
    assert not library_module.compare_with_node(shared_object, root).known
    assert library_module.compare_with_node(shared_object, Path("/")).lacking == ("libc.so.6: GLIBC_9.99",)


def test_a_needed_library_that_the_node_lacks_is_named(node_root, tmp_path: Path) -> None:
    compiler = tools.require("cc", package="gcc")
    source, other, built = tmp_path / "s.c", tmp_path / "libother.so.1", tmp_path / "libvgpu.so"
    source.write_text("int f(void) { return 1; }\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-Wl,-soname,libother.so.1", source, "-o", other], check=True)
    subprocess.run([compiler, "-shared", "-fPIC", "-Wl,--no-as-needed", source, other, "-lc", "-o", built], check=True)
    view = library_module.compare_with_node(library_module.load(built).shared_object, node_root("lib64"))
    assert view.known
    assert view.lacking == ("libother.so.1",)


def test_selinux_is_seen_by_its_file_system(tmp_path: Path) -> None:
    filesystems = tmp_path / "filesystems"
    filesystems.write_text("nodev\tsysfs\n\text4\n")
    assert not selinux.is_enabled(filesystems)
    filesystems.write_text("nodev\tsysfs\nnodev\tselinuxfs\n\text4\n")
    assert selinux.is_enabled(filesystems)


@pytest.mark.root
def test_files_get_the_selinux_type_that_is_asked_for(libsync, keep, right, host_dir, library, monkeypatch) -> None:
    """File systems keep labels also where no policy is loaded; that SELinux is on is all that is pretended."""
    tools.require_root()
    monkeypatch.setattr(selinux, "is_enabled", lambda: True)
    libsync("once", *keep)
    flags = (*keep, "--selinux-type", "container_file_t")
    try:
        os.setxattr(host_dir / "ld.so.preload", "security.selinux", b"system_u:object_r:var_lib_t:s0\0")
    except OSError as error:
        tools.skip_or_fail(f"the temporary directory's file system keeps no labels: {error}")
    lines = libsync("check", *flags, status=1).stdout.splitlines()
    assert lines == [
        f"{host_dir}/{name}: does not have the SELinux type container_file_t at level s0"
        for name in ("libvgpu.so", "ld.so.preload")
    ]
    libsync("once", *flags)
    assert right(host_dir, library)
    for name in ("libvgpu.so", "ld.so.preload"):
        assert os.getxattr(host_dir / name, "security.selinux") == b"system_u:object_r:container_file_t:s0\0"
    # A level of its own would shut all other containers out.
    os.setxattr(host_dir / "libvgpu.so", "security.selinux", b"system_u:object_r:container_file_t:s0:c1,c2\0")
    assert len(libsync("check", *flags, status=1).stdout.splitlines()) == 1
    libsync("once", *flags)
    assert libsync("check", *flags).stdout == ""
    # What containers make in the directory of regions inherits its label.
    lines = libsync("check", *flags, "--region-dir", status=1).stdout.splitlines()
    assert lines == [f"{host_dir}/containers: the directory is missing"]
    libsync("once", *flags, "--region-dir")
    assert os.getxattr(host_dir / "containers", "security.selinux") == b"system_u:object_r:container_file_t:s0\0"
    os.setxattr(host_dir / "containers", "security.selinux", b"system_u:object_r:var_lib_t:s0\0")
    assert "container_file_t" in libsync("check", *flags, "--region-dir", status=1).stdout
    libsync("once", *flags, "--region-dir")
    assert libsync("check", *flags, "--region-dir").stdout == ""
    # A file made anew gets its label before it comes into its place.
    (host_dir / "libvgpu.so").unlink()
    libsync("once", *flags)
    assert os.getxattr(host_dir / "libvgpu.so", "security.selinux") == b"system_u:object_r:container_file_t:s0\0"


def test_where_selinux_is_off_the_type_is_not_looked_at(libsync, keep, right, host_dir, library, monkeypatch) -> None:
    monkeypatch.setattr(selinux, "is_enabled", lambda: False)
    assert "selinux_off" in libsync("once", *keep, "--selinux-type", "container_file_t").stderr
    assert right(host_dir, library)


def test_mountinfo_is_read_as_the_kernel_writes_it() -> None:
    text = (
        "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
        r"40 22 8:1 /var/lib/a\040b /mnt/with\040space rw - ext4 /dev/sda1 rw" + "\n"
        "41 22 8:1 /first /mnt/twice rw - ext4 /dev/sda1 rw\n"
        "42 41 8:1 /second//deleted /mnt/twice rw master:1 - ext4 /dev/sda1 rw\n"
    )
    assert mounts.shown_at(Path("/mnt/with space"), text) == r"/var/lib/a\040b"
    assert mounts.shown_at(Path("/mnt/twice"), text) == "/second//deleted"
    assert mounts.shown_at(Path("/mnt"), text) is None
    assert mounts.shown_at(Path("/"), mounts.MOUNTINFO.read_text()) is not None


def test_check_as_json(libsync, keep, host_dir: Path, library: Path) -> None:
    libsync("once", *keep)
    (host_dir / "ld.so.preload").write_text("")
    report = json.loads(libsync("check", *keep, "--json", status=1).stdout)
    assert report["right"] is False
    assert report["directory"] == str(host_dir)
    assert report["files"]["libvgpu.so"]["bytes"] == library.stat().st_size
    (finding,) = report["findings"]
    assert finding["finding"] == "content"
    assert finding["path"] == f"{host_dir}/ld.so.preload"
    assert finding["message"].startswith("is 0 bytes with digest")
    libsync("once", *keep)
    report = json.loads(libsync("check", *keep, "--json").stdout)
    assert (report["right"], report["findings"]) == (True, [])


def test_check_of_a_directory_that_is_not_there(libsync, keep, host_dir: Path) -> None:
    assert libsync("check", *keep, status=1).stdout == f"{host_dir}: cannot be looked at: No such file or directory\n"
