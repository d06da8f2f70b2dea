"""Build the images of the services and of the library, with whichever of docker, podman and buildah is there.

docker and podman pull the base image that the Dockerfiles name and install from the package index. buildah, which needs
no daemon and works where nothing can be pulled, starts from a base made by debootstrap and installs from wheels that
were downloaded before, without a network. Each service's image is then started once.

The library's image holds files alone: podman and buildah make it for every machine, docker for this one (its Dockerfile
says how to make it for all).

  python -m deploy.images                          all five, as kai-resource-isolator-NAME:VERSION
  python -m deploy.images webhook --tool buildah   one of them
  python -m deploy.images --registry REG --tag T   names for a registry; pushing is yours
"""

import argparse
import contextlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kai-resource-isolator" / "images"
SERVICES = ("webhook", "vramd", "monitor", "libsync")
LIBRARY = "library"
IMAGES = (*SERVICES, LIBRARY)
MACHINES = ("x86_64", "aarch64")
PLATFORMS = "linux/amd64,linux/arm64"
LIBRARY_FILES = {"libvgpu.so": 0o100755, "limits": 0o40755, "containers": 0o40755}
"""What the library's image holds, and nothing else: mode of each file."""

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


def dockerfile(image: str) -> Path:
    """The Dockerfile of an image, from the root of the repository."""
    return Path("native/hami-core/Dockerfile" if image == LIBRARY else f"services/{image}/Dockerfile")


@contextlib.contextmanager
def build_context(image: str) -> Iterator[Path]:
    """A directory with what the Dockerfile of an image copies, and nothing else of the tree."""
    with tempfile.TemporaryDirectory(prefix="isolator-image-") as name:
        context = Path(name)
        if image == LIBRARY:
            (context / dockerfile(image)).parent.mkdir(parents=True)
            shutil.copy(ROOT / dockerfile(image), context / dockerfile(image))
        else:
            shutil.copy(ROOT / "constraints.txt", context)
            for folder in ("packages/core", f"services/{image}"):
                ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "tests")
                shutil.copytree(ROOT / folder, context / folder, ignore=ignored)
        if image in (LIBRARY, "libsync"):
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


def build_library_image(tool: str, image: str) -> None:
    """Build the library's image: with podman and buildah a list of one for every machine."""
    named: tuple[str, ...] = ("--tag", image)
    if tool != "docker":
        # A list of that name would be added to.
        subprocess.run([tool, "manifest", "rm", image], capture_output=True, check=False)
        named = ("--platform", PLATFORMS, "--manifest", image)
    isolation = ("--isolation=chroot",) if tool == "buildah" else ()
    _say(f"building {image} with {tool}")
    with build_context(LIBRARY) as context:
        _run(tool, "build", *isolation, "--file", dockerfile(LIBRARY), *named, ".", cwd=context)


def check_library_image(tool: str, image: str) -> str:
    """Look at what the library's image holds. Returns a line about it. Raises BuildError."""
    found = {}
    with tempfile.TemporaryFile() as file:
        if tool == "buildah":
            container = _read("buildah", "from", "--pull-never", image).strip()
            where = _read("buildah", "mount", container).strip()
            command, remove = ["tar", "--create", "--directory", where, "."], ["buildah", "rm", container]
        else:
            # It is never started: the command only has to be there.
            container = _read(tool, "create", image, "none").strip()
            command, remove = [tool, "export", container], [tool, "rm", container]
        try:
            subprocess.run(command, check=True, stdout=file)
        finally:
            subprocess.run(remove, check=True, stdout=sys.stderr)
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            for member in archive:
                name = member.name.removeprefix("./").rstrip("/")
                kind = stat.S_IFDIR if member.isdir() else stat.S_IFREG
                if name not in ("", "."):
                    found[name] = kind | member.mode
            size = sum(member.size for member in archive.getmembers())
    # docker and podman export what they mount into every container besides.
    missing = {name: mode for name, mode in LIBRARY_FILES.items() if found.get(name) != mode}
    if missing or (tool == "buildah" and found.keys() != LIBRARY_FILES.keys()):
        raise BuildError(f"{image} holds {found}, expected {LIBRARY_FILES}")
    return f"{image}: {', '.join(LIBRARY_FILES)}, {size / 1e6:.1f} MB"


def build(service: str, tool: str, image: str, base: str | None) -> None:
    """Build the image of a service."""
    arguments: list[str | Path] = [
        "build", "--file", dockerfile(service), "--tag", image,
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
    parser.add_argument("images", nargs="*", metavar="NAME", help=f"of {', '.join(IMAGES)}; default all")
    parser.add_argument("--tool", choices=("docker", "podman", "buildah"), help="default the first that works")
    parser.add_argument("--base-image", help="base image; with buildah, default one made by debootstrap")
    parser.add_argument("--registry", default="", help="registry in front of the images' names")
    parser.add_argument("--tag", default=version(), help="tag; default the chart's appVersion")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.images if name not in IMAGES]
    if unknown:
        parser.error(f"unknown image {unknown[0]!r}; accepted are {', '.join(IMAGES)}")
    prefix = f"{chosen.registry.rstrip('/')}/" if chosen.registry else ""
    wanted = chosen.images or IMAGES
    services = [name for name in wanted if name != LIBRARY]
    try:
        tool = chosen.tool or find_tool()
        _need(tool, {"docker": "docker.io"}.get(tool, tool))
        base = chosen.base_image or (make_base() if tool == "buildah" and services else None)
        if {LIBRARY, "libsync"} & set(wanted):
            build_library()
        for name in wanted:
            image = f"{prefix}kai-resource-isolator-{name}:{chosen.tag}"
            if name == LIBRARY:
                build_library_image(tool, image)
                print(check_library_image(tool, image), flush=True)
            else:
                build(name, tool, image, base)
                print(check(name, tool, image), flush=True)
    except (BuildError, subprocess.CalledProcessError) as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
