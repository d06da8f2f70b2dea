"""`python -m tests.demo`: run the demo, print its table, write its evidence."""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from tests.demo import checks, report, site
from tests.demo.services import ServiceFailure
from tests.node.runtime import RuntimeFailure, probe

CANNOT_RUN = 2


class CannotRun(Exception):
    """What has to be put right before the demo can run, in a sentence."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.demo",
        description="Take the pods of examples/ from their manifests to capped containers on a fake Tesla T4, with the "
        "four services as real processes. Ends with 0 if everything is as expected, 1 if not, 2 if it cannot run.",
    )
    parser.add_argument(
        "--without", action="append", default=[], choices=site.SERVICES, metavar="SERVICE",
        help=f"leave a service out and see what fails then; may be repeated; one of {', '.join(site.SERVICES)}",
    )  # fmt: skip
    parser.add_argument(
        "--evidence", type=Path, default=Path("demo-evidence.json"), metavar="FILE",
        help="where to write expected, observed and raw output of each check; default %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--keep", action="store_true", help="keep the working directory with the services' logs, and say where it is"
    )
    return parser.parse_args(arguments)


def require(directory: Path, evidence: Path) -> None:
    """Raise CannotRun unless this machine can run the demo in `directory` and write `evidence`."""
    if evidence.is_dir() or not evidence.resolve().parent.is_dir():
        raise CannotRun(f"--evidence is {evidence}: give a file in a directory that exists")
    if os.geteuid() != 0:
        raise CannotRun("needs to run as root, to make namespaces and mounts for the containers: try `sudo ./dev demo`")
    for tool, package in (("setpriv", "util-linux"), ("ldconfig", "libc-bin")):
        if shutil.which(tool, path="/usr/sbin:/usr/bin:/sbin:/bin") is None:
            raise CannotRun(f"{tool} is missing: install the package {package}")
    for built in (site.LIBRARY, *(site.FAKE_GPU / "build" / name for name in site.DRIVER_FILES)):
        if not built.is_file():
            raise CannotRun(f"{built.relative_to(site.REPOSITORY)} is not built: run `./dev demo`, which builds it")
    if ":" in str(directory):
        raise CannotRun(
            f"{directory} has a colon, which ends a path in LD_LIBRARY_PATH: set TMPDIR to another directory"
        )
    if os.statvfs(directory).f_flag & os.ST_NOEXEC:
        raise CannotRun(f"{directory} is on a file system without exec: set TMPDIR to a directory of another one")
    try:
        probe(directory / "probe")
    except RuntimeFailure as failure:
        raise CannotRun(f"this machine does not let root make containers: {failure}") from failure


def run(directory: Path, left_out: list[str]) -> list[report.Check]:
    """Every check, in the order of the table."""
    begun = time.monotonic()

    def progress(text: str) -> None:
        print(f"{time.monotonic() - begun:6.1f} s  {text}", file=sys.stderr, flush=True)

    made = {}
    with site.running(directory, left_out, progress) as place:
        for check in checks.run(place):
            progress(f"{check.name}: {'ok' if check.ok else 'FAILED'}")
            made[check.name] = check
        for service in place.services:
            for complaint in service.complaints():
                progress(complaint)
    return [made[name] for name in checks.NAMES]


def main(arguments: list[str] | None = None) -> int:
    """Run the demo and return its exit status."""
    options = parse(arguments)
    directory = Path(tempfile.mkdtemp(prefix="isolator-demo-"))
    # The containers' users reach nothing through it but what is mounted; the services' files are below it.
    directory.chmod(0o755)
    try:
        require(directory, options.evidence)
        options.evidence.unlink(missing_ok=True)
        made = run(directory, options.without)
    except CannotRun as reason:
        print(f"demo: {reason}", file=sys.stderr)
        return CANNOT_RUN
    except ServiceFailure as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    finally:
        if options.keep:
            print(f"demo: logs and files are in {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory)
    report.write_evidence(made, options.evidence)
    good = sum(check.ok for check in made)
    print(report.table(made))
    print(f"\n{good} of {len(made)} as expected; the evidence is in {options.evidence}")
    return 0 if good == len(made) else 1


def _interrupted(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupted)
    sys.exit(main())
