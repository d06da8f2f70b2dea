"""Build the services' images from their Dockerfiles, with whichever of docker, podman and buildah is there.

docker and podman pull the base image that the Dockerfiles name and install from the package index. buildah, which needs
no daemon and works where nothing can be pulled, starts from a base made by debootstrap and installs from wheels that
were downloaded before, without a network. Each image is then started once.

  python -m deploy.images                          all four, as kai-resource-isolator-SERVICE:VERSION
  python -m deploy.images webhook --tool buildah   one of them
  python -m deploy.images --registry REG --tag T   names for a registry; pushing is yours
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kai-resource-isolator" / "images"
SERVICES = ("webhook", "vramd", "monitor", "libsync")
MACHINES = ("x86_64", "aarch64")
NATIVE = ROOT / "native" / "hami-core"
BASE = "localhost/kai-resource-isolator-base:bookworm"
BASE_PYTHON = "3.11"
"""Python of Debian 12, which the base made here is."""

HELM_TEST = ("/opt/isolator/bin/python", "-c", "import json, ssl, urllib.request")
"""What the chart's test pod needs of an image."""

UNNEEDED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "var/cache/apt",
    "var/lib/apt/lists",
)


class BuildError(Exception):
    """An image could not be built; one line that says what is missing or what failed."""


def _say(text: str) -> None:
    print(f"images: {text}", file=sys.stderr, flush=True)


def _run(*command: str | Path, cwd: Path = ROOT) -> None:
    if subprocess.run(command, cwd=cwd, check=False, stdout=sys.stderr).returncode != 0:
        raise BuildError(f"`{' '.join(map(str, command))}` failed")


def _read(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _need(tool: str, package: str) -> str:
    found = shutil.which(tool)
    if found is None:
        raise BuildError(f"{tool} is missing: install the package {package}")
    return found


def find_tool() -> str:
    """The first of docker, podman and buildah that can build here. Raises BuildError."""
    if shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0:
        return "docker"
    for tool in ("podman", "buildah"):
        if shutil.which(tool):
            return tool
    raise BuildError("no docker daemon answers and neither podman nor buildah is there: install the package buildah")


def version() -> str:
    """Version that images get by default: the chart's appVersion."""
    for line in (ROOT / "deploy/helm/kai-resource-isolator/Chart.yaml").read_text().splitlines():
        if line.startswith("appVersion:"):
            return line.partition(":")[2].strip().strip('"')
    raise BuildError("the chart has no appVersion")


def build_library() -> None:
    """Build the libvgpu.so that is shipped for every machine into native/hami-core/build/release/MACHINE."""
    _say("building libvgpu.so for " + ", ".join(MACHINES))
    _run("make", "--silent", "-C", NATIVE, f"ZIG={sys.executable} -m ziglang", "release")


@contextlib.contextmanager
def build_context(service: str) -> Iterator[Path]:
    """A directory with what the Dockerfile of a service copies, and nothing else of the tree."""
    with tempfile.TemporaryDirectory(prefix="isolator-image-") as name:
        context = Path(name)
        shutil.copy(ROOT / "constraints.txt", context)
        for folder in ("packages/core", f"services/{service}"):
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "tests")
            shutil.copytree(ROOT / folder, context / folder, ignore=ignored)
        if service == "libsync":
            for machine in MACHINES:
                target = context / "native/hami-core/build/release" / machine
                target.mkdir(parents=True)
                shutil.copy(NATIVE / "build/release" / machine / "libvgpu.so", target)
        yield context


def _dependencies(service: str) -> list[str]:
    """What the Dockerfile's pip will ask for, besides this project's own packages."""
    core, own = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())
        for folder in ("packages/core", f"services/{service}")
    )
    found = []
    for project in (core, own):
        found += project["project"]["dependencies"] + project["build-system"]["requires"]
    for extra in re.findall(r"isolator-core\[([\w,-]+)\]", " ".join(found)):
        for name in extra.split(","):
            found += core["project"]["optional-dependencies"][name]
    return [name for name in dict.fromkeys(found) if not name.startswith("isolator-")]


def wheels(service: str) -> Path:
    """Directory with the wheels that an image needs, and a pip.conf that has pip take them from /wheels alone."""
    folder = CACHE / "wheels" / service
    folder.mkdir(parents=True, exist_ok=True)
    _say(f"downloading wheels for {service}")
    _run(
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:",
        "--python-version", BASE_PYTHON, "--constraint", "constraints.txt", "--dest", folder, *_dependencies(service),
    )  # fmt: skip
    (folder / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    return folder


def make_base() -> str:
    """The base image by debootstrap, once. Returns its name."""
    if (
        subprocess.run(["buildah", "inspect", "--type", "image", BASE], capture_output=True, check=False).returncode
        == 0
    ):
        return BASE
    _need("debootstrap", "debootstrap")
    if os.geteuid() != 0:
        raise BuildError("making a base image needs root; or name one with --base-image")
    _say("making a base image of Debian 12 by debootstrap (once; about a minute)")
    with tempfile.TemporaryDirectory(prefix="isolator-base-") as name:
        root = Path(name) / "root"
        _run("debootstrap", "--variant=minbase", "--include=python3,python3-venv", "bookworm", root)
        for folder in UNNEEDED:
            shutil.rmtree(root / folder, ignore_errors=True)
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        container = _read("buildah", "from", "scratch").strip()
        try:
            _run("buildah", "add", "--quiet", container, root, "/")
            _run("buildah", "commit", "--quiet", container, BASE)
        finally:
            _run("buildah", "rm", container)
    return BASE


def build(service: str, tool: str, image: str, base: str | None) -> None:
    """Build one image."""
    arguments: list[str | Path] = [
        "build", "--file", f"services/{service}/Dockerfile", "--tag", image,
        *(["--build-arg", f"BASE_IMAGE={base}"] if base else []),
    ]  # fmt: skip
    if tool == "buildah":
        offline = wheels(service)
        arguments += ["--isolation=chroot", f"--volume={offline}:/wheels:ro"]
        arguments += [f"--volume={offline / 'pip.conf'}:/etc/pip.conf:ro"]
    _say(f"building {image} with {tool}")
    with build_context(service) as context:
        _run(tool, *arguments, ".", cwd=context)


def check(service: str, tool: str, image: str) -> str:
    """Start the image's program once, as the image's user. Returns a line about it. Raises BuildError."""
    program = f"/opt/isolator/bin/isolator-{service}"
    if tool == "buildah":
        container = _read("buildah", "from", image).strip()
        try:
            _run("buildah", "run", "--isolation=chroot", container, "--", program, "--help")
            _run("buildah", "run", "--isolation=chroot", container, "--", *HELM_TEST)
            user = _read("buildah", "run", "--isolation=chroot", container, "--", "id", "-u").strip()
            where = Path(_read("buildah", "mount", container).strip())
            size = sum(path.lstat().st_size for path in where.rglob("*"))
        finally:
            _run("buildah", "rm", container)
    else:
        _run(tool, "run", "--rm", image, "--help")
        _run(tool, "run", "--rm", "--entrypoint", HELM_TEST[0], image, *HELM_TEST[1:])
        user = _read(tool, "run", "--rm", "--entrypoint", "id", image, "-u").strip()
        size = int(_read(tool, "image", "inspect", "--format", "{{.Size}}", image))
    return f"{image}: user {user}, {size / 1e6:.0f} MB"


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what is named, or all. Returns 1 with one line on standard error where that fails."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.images", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("services", nargs="*", metavar="SERVICE", help=f"of {', '.join(SERVICES)}; default all")
    parser.add_argument("--tool", choices=("docker", "podman", "buildah"), help="default the first that works")
    parser.add_argument("--base-image", help="base image; with buildah, default one made by debootstrap")
    parser.add_argument("--registry", default="", help="registry in front of the images' names")
    parser.add_argument("--tag", default=version(), help="tag; default the chart's appVersion")
    chosen = parser.parse_args(arguments)
    unknown = [service for service in chosen.services if service not in SERVICES]
    if unknown:
        parser.error(f"unknown service {unknown[0]!r}; accepted are {', '.join(SERVICES)}")
    prefix = f"{chosen.registry.rstrip('/')}/" if chosen.registry else ""
    services = chosen.services or SERVICES
    try:
        tool = chosen.tool or find_tool()
        _need(tool, {"docker": "docker.io"}.get(tool, tool))
        base = chosen.base_image or (make_base() if tool == "buildah" else None)
        if "libsync" in services:
            build_library()
        for service in services:
            image = f"{prefix}kai-resource-isolator-{service}:{chosen.tag}"
            build(service, tool, image, base)
            print(check(service, tool, image), flush=True)
    except (BuildError, subprocess.CalledProcessError) as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
