"""The `request` file: what is written is read back, what is malformed is refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolator_core import request_file
from isolator_core.request_file import RegionVolume, RequestFile, RequestFileInvalid


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (RequestFile("main", memory_mib=4096), "container=main\nmemory=4096m\ndevices=1\n"),
        (
            RequestFile("main", fraction="0.25", at_most_mib=3840, devices=2, cores=30, priority=0),
            "container=main\nfraction=0.25\nat-most=3840m\ndevices=2\ncores=30\npriority=0\n",
        ),
        (RequestFile("main", exempt=True), "container=main\nmemory=none\ndevices=1\n"),
        (
            RequestFile("main", memory_mib=1, region="hostPath"),
            "container=main\nmemory=1m\ndevices=1\nregion=hostPath\n",
        ),
    ],
)
def test_text(content: RequestFile, text: str) -> None:
    assert request_file.build(content) == text
    assert request_file.parse(text) == content


def test_the_default_region_may_be_named() -> None:
    assert request_file.parse("container=main\nmemory=1m\nregion=emptyDir\n") == RequestFile("main", memory_mib=1)


def test_unknown_keys_change_nothing() -> None:
    found = request_file.parse("colour=blue\ncontainer=main\nmemory=1m\nother=\nother=2\n\n")
    assert found == RequestFile("main", memory_mib=1, unknown=("colour", "other", "other"))


def test_spaces_around_lines_and_leading_zeros_change_nothing() -> None:
    found = request_file.parse(" container=main\r\n\tmemory=0010m \r\n")
    assert found == RequestFile("main", memory_mib=10)


@pytest.mark.parametrize("text", ["1", "1.0", "0.5", ".5", "0.1234567890123456789", request_file.LEAST_FRACTION, "01."])
def test_fractions(text: str) -> None:
    assert request_file.parse(f"container=main\nfraction={text}\n").fraction == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["container", "missing"]),
        ("memory=1m\n", ["container", "missing"]),
        ("container=\nmemory=1m\n", ["container", "''"]),
        ("container=Main\nmemory=1m\n", ["container", "'Main'"]),
        (f"container={'a' * 64}\nmemory=1m\n", ["container"]),
        ("container=main\n", ["memory", "fraction"]),
        ("container=main\nmemory=1m\nfraction=0.5\n", ["memory", "fraction"]),
        ("container=main\nmemory=1m\nmemory=1m\n", ["memory", "twice", "line 3"]),
        ("container=main\nmemory=1\n", ["memory", "'1'", "4096m"]),
        ("container=main\nmemory=0m\n", ["memory", "'0'"]),
        ("container=main\nmemory=17592186044416m\n", ["memory", "17592186044415"]),
        ("container=main\nmemory=+1m\n", ["memory", "'+1'"]),
        ("container=main\nmemory=m\n", ["memory", "''"]),
        ("container=main\nmemory=None\n", ["memory", "'None'"]),
        ("container=main\nfraction=0\n", ["fraction", "'0'"]),
        ("container=main\nfraction=.\n", ["fraction", "'.'"]),
        ("container=main\nfraction=0.0000000000000000009\n", ["fraction"]),
        ("container=main\nfraction=1.000000000000000001\n", ["fraction"]),
        ("container=main\nfraction=1.5\n", ["fraction", "'1.5'"]),
        ("container=main\nfraction=5e-1\n", ["fraction", "'5e-1'"]),
        ("container=main\nfraction=0.5\nat-most=1\n", ["at-most", "'1'"]),
        ("container=main\nmemory=1m\ndevices=0\n", ["devices", "'0'"]),
        ("container=main\nmemory=1m\ncores=0\n", ["cores", "'0'", "1 to 100"]),
        ("container=main\nmemory=1m\ncores=101\n", ["cores", "'101'", "1 to 100"]),
        ("container=main\nmemory=1m\npriority=2\n", ["priority", "'2'", "0 to 1"]),
        ("container=main\nmemory=1m\npriority=\n", ["priority", "''"]),
        ("container=main\nmemory=1m\nregion=hostpath\n", ["region", "'hostpath'", "emptyDir, hostPath"]),
        ("container=main\nmemory\n", ["line 2", "'memory'", "key=value"]),
        ("container=main\nmemory = 1m\n", ["memory", "fraction"]),
    ],
)
def test_malformed(text: str, words: list[str]) -> None:
    with pytest.raises(RequestFileInvalid) as invalid:
        request_file.parse(text)
    for word in words:
        assert word in str(invalid.value)


@pytest.mark.parametrize(
    "content",
    [
        RequestFile("main"),
        RequestFile("main", memory_mib=0),
        RequestFile("main", memory_mib=request_file.MOST_MIB + 1),
        RequestFile("main", fraction="0.0000000000000000001"),
        RequestFile("main", memory_mib=1, fraction="0.5"),
        RequestFile("main\nmemory=none", fraction="0.5"),
        RequestFile("main", fraction="0.50\ncores=1"),
        RequestFile("main", memory_mib=1, unknown=("colour",)),
    ],
)
def test_what_would_not_be_read_back_is_not_written(content: RequestFile) -> None:
    with pytest.raises(RequestFileInvalid):
        request_file.build(content)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = request_file.parse(text)
    except RequestFileInvalid:
        return
    assert (found.memory_mib, found.fraction, found.exempt).count(None) >= 1


_NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True).filter(str.isascii)


@given(
    _NAMES,
    st.one_of(
        st.integers(1, request_file.MOST_MIB),
        st.sampled_from(["0.25", "0.000000001", "1", "0.3333333333333333"]),
        st.none(),
    ),
    st.integers(1, 16),
    st.none() | st.integers(1, 100),
    st.none() | st.integers(0, 1),
    st.sampled_from(request_file.REGION_VOLUMES),
)
def test_written_is_read_back(
    container: str,
    memory: int | str | None,
    devices: int,
    cores: int | None,
    priority: int | None,
    region: RegionVolume,
) -> None:
    content = RequestFile(
        container,
        memory_mib=memory if isinstance(memory, int) else None,
        fraction=memory if isinstance(memory, str) else None,
        exempt=memory is None,
        devices=devices,
        cores=cores,
        priority=priority,
        region=region,
    )
    assert request_file.parse(request_file.build(content)) == content
