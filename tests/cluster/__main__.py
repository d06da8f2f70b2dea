"""Start a Kubernetes control plane for tests, or build its programs.

python -m tests.cluster build                 build everything that the tests use
python -m tests.cluster up --state DIR        start, print KUBECONFIG, stay until interrupted
python -m tests.cluster run -- COMMAND …      start, run COMMAND with KUBECONFIG set, stop; its exit status is ours
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.cluster import control_plane, network, programs


class _Interrupted(BaseException):
    """SIGINT or SIGTERM came: stop what runs and go."""


def _interrupt(_number: int, _frame: object) -> None:
    raise _Interrupted


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="build the programs into the cache")
    up = commands.add_parser("up", help="start a control plane and stay until interrupted")
    run = commands.add_parser("run", help="start a control plane, run a command with it, stop it")
    for command in (build, up, run):
        command.add_argument(
            "--kubernetes", default=programs.DEFAULT_KUBERNETES, choices=programs.KUBERNETES_VERSIONS, metavar="MINOR",
            help=f"one of {', '.join(programs.KUBERNETES_VERSIONS)} [{programs.DEFAULT_KUBERNETES}]",
        )  # fmt: skip
    build.add_argument("programs", nargs="*", metavar="PROGRAM", help="all that the tests use, unless named")
    for command in (up, run):
        command.add_argument(
            "--state", type=Path, help="directory for its files, empty or new; default a temporary one"
        )
        command.add_argument(
            "--network-namespace", metavar="NAME",
            help="listen in a network namespace of this name, made and removed here (root), instead of on loopback",
        )  # fmt: skip
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND …")
    return parser.parse_args()


@contextlib.contextmanager
def _plane(chosen: argparse.Namespace) -> Iterator[control_plane.ControlPlane]:
    with contextlib.ExitStack() as stack:
        state = chosen.state or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="isolator-cluster-")))
        state.mkdir(parents=True, exist_ok=True)
        where = network.LOOPBACK
        if chosen.network_namespace:
            where = stack.enter_context(network.namespace(chosen.network_namespace))
        yield stack.enter_context(control_plane.control_plane(state.resolve(), chosen.kubernetes, where))


def _build(chosen: argparse.Namespace) -> int:
    wanted = chosen.programs or ["etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "helm4", "helm3"]
    for program in wanted:
        print(f"{program} {programs.ensure(program, chosen.kubernetes)}")
    return 0


def _up(chosen: argparse.Namespace) -> int:
    with _plane(chosen) as plane:
        print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
        with contextlib.suppress(_Interrupted):
            signal.pause()
    return 0


def _run(chosen: argparse.Namespace) -> int:
    command = chosen.argv[1:] if chosen.argv[:1] == ["--"] else chosen.argv
    if not command:
        print("python -m tests.cluster run: name a command after --", file=sys.stderr)
        return 2
    with _plane(chosen) as plane:
        return subprocess.run(command, env=os.environ | {"KUBECONFIG": str(plane.kubeconfig)}, check=False).returncode


def main() -> int:
    chosen = _arguments()
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return {"build": _build, "up": _up, "run": _run}[chosen.command](chosen)
    except _Interrupted:
        return 130
    except (programs.BuildError, RuntimeError, TimeoutError, OSError) as error:
        print(f"python -m tests.cluster: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
