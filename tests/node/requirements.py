"""What tests that run containers need of the machine."""

import functools
import tempfile
from pathlib import Path

from tests.node.runtime import RuntimeFailure, probe

from isolator_testing.tools import require_root, skip_or_fail


def require_containers() -> None:
    """Skip the calling test, or fail it where `CI=true`, unless this machine lets us run containers."""
    require_root()
    refusal = _refusal()
    if refusal is not None:
        skip_or_fail(f"this machine does not let root make containers: {refusal}")


@functools.cache
def _refusal() -> str | None:
    with tempfile.TemporaryDirectory() as directory:
        try:
            probe(Path(directory) / "probe")
        except RuntimeFailure as failure:
            return str(failure)
    return None
