"""Debian's packages and systems for tests: from this machine's mirror, unpacked into the cache, never installed."""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kai-resource-isolator"


class Unavailable(Exception):
    """Something that cannot be had here, and why."""


@dataclass(frozen=True)
class Mirror:
    """Where this machine gets Debian's packages, and the keyring that its sources name for it."""

    uri: str
    keyring: str | None


def mirror() -> Mirror:
    """The mirror in this machine's apt sources. Raises Unavailable if there is none."""
    for file in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        uri = re.search(r"^URIs:\s*(\S+/debian/?)\s*$", file.read_text(), re.MULTILINE)
        signed = re.search(r"^Signed-By:\s*(\S+)\s*$", file.read_text(), re.MULTILINE)
        if uri:
            return Mirror(uri[1], signed[1] if signed else None)
    lists = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*.list")]
    for line in "\n".join(file.read_text() for file in lists if file.exists()).splitlines():
        entry = re.match(r"deb\s+(\[.*\]\s+)?(\S+/debian/?)\s", line)
        if entry:
            return Mirror(entry[2], None)
    raise Unavailable("this machine has no Debian mirror in its apt sources")


def run(command: list[str], cwd: Path, environment: dict[str, str] | None = None) -> None:
    """Run a command that fetches something. Raises Unavailable with its last line if it fails."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | (environment or {}), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Unavailable(f"{' '.join(command)}: {said[-1] if said else done.returncode}")


@contextmanager
def made_once(place: Path) -> Iterator[Path | None]:
    """Yield an empty folder to fill, which becomes `place` at the end, or None if `place` is there already.

    Of several processes that want it, one makes it while the others wait.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f".{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.exists():
            yield None
            return
        making = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
        try:
            yield making
            making.chmod(0o755)
            making.rename(place)
        finally:
            shutil.rmtree(making, ignore_errors=True)


def packages(*names: str, suite: str, architecture: str = "amd64", component: str = "main") -> Path:
    """Folder with the files of packages of a suite. Raises Unavailable."""
    with made_once(CACHE / "packages" / f"{suite}-{architecture}" / "+".join(names)) as making:
        if making is not None:
            _download(names, suite, architecture, component, making)
    return CACHE / "packages" / f"{suite}-{architecture}" / "+".join(names)


@contextmanager
def _apt(folder: Path, suite: str, architecture: str, component: str, kind: str) -> Iterator[dict[str, str]]:
    """An apt state of its own below `folder`, for as long as it lasts; yields the environment that makes apt use it."""
    if shutil.which("apt-get") is None:
        raise Unavailable("Debian's packages need apt-get, which this machine does not have")
    source = mirror()
    apt = folder / "apt"
    for part in ("lists/partial", "cache/archives/partial", "state"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    signed = f"Signed-By: {source.keyring}\n" if source.keyring else ""
    (apt / "debian.sources").write_text(
        f"Types: {kind}\nURIs: {source.uri}\nSuites: {suite}\nComponents: {component}\n{signed}"
    )
    (apt / "status").touch()
    (apt / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{apt}/debian.sources";\nDir::Etc::sourceparts "-";\nDir::State "{apt}/state";\n'
        f'Dir::State::lists "{apt}/lists";\nDir::State::status "{apt}/status";\nDir::Cache "{apt}/cache";\n'
        f'APT::Sandbox::User "root";\nAPT::Architecture "{architecture}";\nAPT::Architectures {{"{architecture}";}};\n'
    )
    with_apt = {"APT_CONFIG": str(apt / "apt.conf")}
    run(["apt-get", "update", "--quiet"], folder, with_apt)
    yield with_apt
    shutil.rmtree(apt)


def _download(names: tuple[str, ...], suite: str, architecture: str, component: str, folder: Path) -> None:
    """Download and unpack packages."""
    with _apt(folder, suite, architecture, component, "deb") as with_apt:
        run(["apt-get", "download", "--quiet", *names], folder, with_apt)
    for package in folder.glob("*.deb"):
        run(["dpkg-deb", "--extract", str(package), str(folder)], folder)
        package.unlink()


def source(name: str, *, suite: str, folder: Path) -> Path:
    """Download a source package into `folder` and unpack it as its authors released it. Raises Unavailable."""
    with _apt(folder, suite, "amd64", "main", "deb-src") as with_apt:
        run(["apt-get", "source", "--quiet", "--download-only", name], folder, with_apt)
    (archive,) = folder.glob("*.orig.tar.*")
    unpacked = folder / name
    unpacked.mkdir()
    run(["tar", "--extract", "--strip-components=1", "--file", str(archive), "--directory", str(unpacked)], folder)
    return unpacked


def root_archive(suite: str, *include: str) -> Path:
    """Archive of a minimal Debian and more packages of a suite, by debootstrap. Needs root. Raises Unavailable."""
    with made_once(CACHE / "roots" / "+".join([suite, *include])) as making:
        if making is not None:
            if shutil.which("debootstrap") is None:
                raise Unavailable("debootstrap is missing: install the package debootstrap")
            root = making / "root"
            more = [f"--include={','.join(include)}"] if include else []
            run(["debootstrap", "--variant=minbase", *more, suite, str(root), mirror().uri], making)
            for unused in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
                shutil.rmtree(root / unused, ignore_errors=True)
            run(["tar", "--create", "--file", "root.tar", "--numeric-owner", "--directory", str(root), "."], making)
            shutil.rmtree(root)
    return CACHE / "roots" / "+".join([suite, *include]) / "root.tar"
