"""Whatever bytes a region file holds, reading it ends with a region within bounds or with an error of a kind."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from isolator_testing.region_fuzz import BASES, Files, check, decode, encode
from isolator_testing.tools import skip_or_fail

CORPUS = Path(__file__).parent / "region_corpus"
FUZZ_SECONDS = 30

FIELDS = (
    *(0, 4, 8, 12, 16, 48, 56, 64, 159, 160, 1600, 1728, 1848, 1856),
    *(1864, 1896, 3016, 3784, 3792, 1_197_880, 2_008_896, 2_008_900, 2_008_912, 2_008_952),
    *(2_011_136, 2_011_144, 2_011_148, 2_011_152, 2_011_160, 2_011_164, 2_011_168, 2_015_232, 2_015_320, 2_023_424),
)
NUMBERS = st.sampled_from(
    [0, 1, 2, 16, 17, 1023, 1024, 1025, 0x7FFFFFFF, 0x80000000, (1 << 32) - 1, 1 << 50, (1 << 64) - 1]
)
VALUES = st.one_of(NUMBERS.map(lambda value: value.to_bytes(8, "little")), st.binary(max_size=64))
OFFSETS = st.one_of(st.sampled_from(FIELDS), st.integers(0, (1 << 24) - 1))
SIZES = st.one_of(
    st.none(),
    st.sampled_from([0, 11, 12, 1856, 1_197_895, 1_197_896, 1_197_897, 2_008_951, 2_008_952, 2_011_136, 3_203_071]),
    st.integers(0, (4 << 20) - 1),
)
INPUTS = st.builds(encode, st.integers(0, len(BASES) - 1), SIZES, st.lists(st.tuples(OFFSETS, VALUES), max_size=6))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("region"))


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=INPUTS)
@example(data=encode(0, None, []))
def test_any_patches_of_any_region(files: Files, data: bytes) -> None:
    files.write(data)
    check(files.directory)
    files.restore()


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=4096))
def test_any_bytes(files: Files, data: bytes) -> None:
    (files.directory / "other").mkdir(exist_ok=True)
    (files.directory / "other" / "usage.cache").write_bytes(data)
    check(files.directory / "other")


def test_bases_are_read(files: Files) -> None:
    for base in range(len(BASES)):
        files.write(encode(base, None, []))
        region = check(files.directory)
        assert region is not None
        assert [process.pid for process in region.processes] == [7, 8]


@given(
    base=st.integers(0, len(BASES) - 1),
    size=SIZES,
    patches=st.lists(st.tuples(OFFSETS, st.binary(max_size=64)), max_size=4),
)
def test_inputs_survive_their_encoding(base: int, size: int | None, patches: list[tuple[int, bytes]]) -> None:
    assert decode(encode(base, size, patches)) == (base, size, patches)


def test_corpus(files: Files) -> None:
    """What fuzzing has found worth keeping."""
    inputs = sorted(CORPUS.iterdir())
    assert inputs
    for path in inputs:
        files.write(path.read_bytes())
        check(files.directory)
        files.restore()


@pytest.mark.slow
def test_fuzzing_finds_nothing(tmp_path: Path) -> None:
    if find_spec("atheris") is None:
        skip_or_fail("atheris is missing: install the Python package atheris")
    done = subprocess.run(
        [sys.executable, "-m", "isolator_testing.region_fuzz", tmp_path, CORPUS, f"-max_total_time={FUZZ_SECONDS}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=FUZZ_SECONDS * 10,
    )
    assert done.returncode == 0, done.stderr[-4000:]
