"""What helm makes of the charts, without a cluster."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.cluster import programs
from tests.cluster.client import Object
from tests.cluster.release import CHARTS, UMBRELLA

GOLDEN = sorted(path.name.removesuffix(".values.yaml") for path in (CHARTS / "golden").glob("*.values.yaml"))
"""Names of the reviewed outputs."""

SINCE = {"library-from-an-image": (1, 31)}
"""Reviewed outputs that the chart refuses to make for an older Kubernetes."""

COMMAND_SECONDS = 120
NEWEST = "1.37.0"
WITH_OPERATOR = ("--api-versions", "monitoring.coreos.com/v1")


class Refused(Exception):
    """helm ended with an error; the text is what it said."""


def template(
    values: Mapping[str, Any] | None = None,
    chart: Path = UMBRELLA,
    *arguments: str,
    name: str = "kai-resource-isolator",
    kube_version: str = NEWEST,
    helm: int = 4,
) -> list[Object]:
    """Rendered objects. Raises Refused."""
    command = [
        str(programs.ensure(f"helm{helm}")), "template", name, str(chart), "--namespace", "isolator",
        "--kube-version", kube_version, "--values", "-", *arguments,
    ]  # fmt: skip
    given = json.dumps(values or {})
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS)
    if done.returncode != 0:
        raise Refused(done.stderr)
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def golden_values(case: str) -> dict[str, Any]:
    """Values of a reviewed output."""
    return dict(yaml.safe_load((CHARTS / "golden" / f"{case}.values.yaml").read_text()))


def fits(case: str, kube_version: str) -> bool:
    """Whether the chart makes this reviewed output for a Kubernetes."""
    major, minor = kube_version.split(".")[:2]
    return (int(major), int(minor)) >= SINCE.get(case, (0, 0))
