"""Tools that a test needs from the system: named when missing, never silently skipped in CI."""

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the calling test for want of something, or fail where `CI=true`: there, everything must be present."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def require(tool: str, *, package: str) -> Path:
    """Path of a program on PATH. Without it the test is skipped, or fails where `CI=true`, naming the package."""
    found = shutil.which(tool)
    if found is None:
        skip_or_fail(f"{tool} is missing: install the package {package}")
    return Path(found)


def require_root() -> None:
    """Skip, or fail where `CI=true`, unless the test runs as root."""
    if os.geteuid() != 0:
        skip_or_fail("needs to run as root")
