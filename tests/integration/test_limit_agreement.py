"""The limit that the monitor reads out of a limits volume is the one that libvgpu enforces, whatever the files hold."""

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from isolator_monitor.limit_files import LimitFiles, LimitInvalid, limit_on_card
from isolator_testing.tools import require

SOURCES = Path(__file__).parents[2] / "native" / "hami-core" / "src"
MIB = 1 << 20
INVALID, NONE = 0, (1 << 64) - 1

SHIM = r"""
#include <string.h>
#include "limits.h"

uint64_t agreed_limit(const char *request, size_t request_length, const char *kai, size_t kai_length, uint64_t card)
{
    struct limit_files files;
    char reason[REASON_BYTES];
    struct span asked = {request, request_length}, written = {kai, kai_length};
    if (!limit_files_parse(asked, span_of("u-1"), kai ? &written : NULL, &files, reason))
        return 0;
    return limit_on_card(&files, (struct card){card, card});
}
"""

Limit = Callable[[str, str | None, int], int]


@pytest.fixture(scope="module")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> Limit:
    """Bytes by the library's own sources; 0 = invalid, 2^64 - 1 = none."""
    folder = tmp_path_factory.mktemp("limits")
    (folder / "shim.c").write_text(SHIM)
    files = [SOURCES / f"{name}.c" for name in ("limits", "request", "kai", "memory_size", "text", "clock")]
    compiler = require("cc", package="gcc")
    built = folder / "limits.so"
    subprocess.run(
        [compiler, "-std=gnu11", "-shared", "-fPIC", "-O1", "-I", SOURCES, "-o", built, folder / "shim.c", *files],
        check=True,
    )
    function = ctypes.CDLL(str(built)).agreed_limit
    function.restype = ctypes.c_uint64
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]

    def limit(request: str, kai: str | None, card: int) -> int:
        written, asked = None if kai is None else kai.encode(), request.encode()
        return int(function(asked, len(asked), written, len(written or b""), card))

    return limit


def in_python(request: str, kai: str | None, card: int) -> int:
    try:
        limit = limit_on_card(LimitFiles(request, kai), card)
    except LimitInvalid:
        return INVALID
    assert limit is not None
    return limit or NONE


# KAI takes a label from 1,048,576 up as bytes, so that nothing is scheduled on a card of a TiB: no limit to agree on.
CARDS = st.one_of(
    st.sampled_from([15360, 16384, 24564, 40960, 81559, 143771, 100, 199]), st.integers(100, (1 << 20) - 1)
).map(lambda mib: mib * MIB)
MEMORY = st.integers(0, 300_000).map(lambda mib: f"memory={mib}m")
FRACTION = st.decimals(0, 1, places=4, allow_nan=False).map(lambda value: f"fraction={value:f}")
SHARE = st.one_of(MEMORY, FRACTION, st.just("memory=none"), st.just("memory=1"), st.just("fraction=.5"))
REST = st.sampled_from(["", "at-most=3840m\n", "cores=30\n", "devices=2\n", "later=1\n", "at-most=0m\n", "memory=5m\n"])
REQUESTS = st.builds(lambda share, rest: f"container=main\n{share}\n{rest}", SHARE, REST)
KAI = st.one_of(
    st.none(),
    st.integers(0, 300_000).map(lambda mib: f"{mib}m"),
    st.text("0123456789xXaAfFgGmMkK .\n-", max_size=8),
    st.sampled_from(["0x10m", "010m", "08m", " 512m", "10 m\n", "2gb", "1.5g", "17179869184g", "-1", "", "1g"]),
)


@settings(max_examples=3000, deadline=None)
@given(request=REQUESTS, kai=KAI, card=CARDS)
@example(request="container=main\nmemory=4096m\n", kai="4147m", card=15360 * MIB)
@example(request="container=main\nfraction=0.125\n", kai="99999m", card=15360 * MIB)
@example(request="container=main\nfraction=0.004\n", kai="1g", card=15360 * MIB)
@example(request="container=main\nmemory=1071m\n", kai="99999m", card=15360 * MIB)
@example(request="container=main\nfraction=0.0000000001746229827404022216796875\n", kai=None, card=1 << 34)
def test_same_limit(in_c: Limit, request: str, kai: str | None, card: int) -> None:
    assert in_python(request, kai, card) == in_c(request, kai, card)
