"""A file of nodes: what is read, and what a wrong one is told."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from isolator_vramd.file_source import decode_nodes

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize(
    "content",
    [
        b'{"kind": "NodeList", "items": [{"metadata": {"name": "a", "labels": {"x": "1"}}}]}',
        b"kind: List\nitems:\n- kind: Node\n  metadata: {name: a, labels: {x: '1'}}\n",
        b"kind: Node\nmetadata:\n  name: a\n  labels: {x: '1'}\n  creationTimestamp: 2026-11-29T10:00:00Z\n",
    ],
)
def test_lists_and_single_nodes_in_yaml_and_json(content: bytes) -> None:
    [node] = decode_nodes(content)
    assert node.metadata.name == "a"
    assert node.metadata.labels == {"x": "1"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", ["not valid YAML or JSON", "at line 2, column 1"]),
        ("- a", ["NodeList is accepted"]),
        ("", ["NodeList is accepted"]),
        ("kind: Pod", ["kind is 'Pod'", "NodeList"]),
        ("kind: NodeList", ["items"]),
        ("{kind: NodeList, items: [{metadata: {name: a, labels: {x: 1}}}]}", ["str", "int", "labels"]),
        ("{kind: NodeList, items: [{metadata: {}}]}", ["items[0].metadata.name is missing"]),
        ("{kind: NodeList, items: [{metadata: {name: ''}}]}", ["items[0].metadata.name is missing"]),
        ("{kind: List, items: [{kind: Pod, metadata: {name: a}}]}", ["items[0].kind is 'Pod'"]),
        (
            "{kind: List, items: [{metadata: {name: a}}, {metadata: {name: a}}]}",
            ["items[1].metadata.name is 'a' a second time"],
        ),
        ("\x00", ["not valid YAML or JSON"]),
    ],
)
def test_wrong_file_ends_with_2_and_what_is_wrong(tmp_path: Path, content: str, words: list[str], command: Run) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text(content)
    done = command("basis", "--nodes-file", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    for word in [str(path), *words]:
        assert word in done.stderr


def test_unreadable_file_ends_with_2(tmp_path: Path, command: Run) -> None:
    for path, word in ((tmp_path / "absent", "No such file"), (tmp_path, "directory")):
        done = command("serve", "--nodes-file", str(path))
        assert done.returncode == 2
        assert done.stderr.startswith(f"isolator-vramd: cannot read --nodes-file {path}: ")
        assert word in done.stderr
