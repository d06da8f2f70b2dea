"""What `isolator-vramd basis` prints for people."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from isolator_testing.node_api import Fault, NodeApi, make_node

Run = Callable[..., "subprocess.CompletedProcess[str]"]

NODES = """
kind: NodeList
items:
- metadata: {name: t4-a, labels: {nvidia.com/gpu.memory: "15360", pool: small, gen: "7"}}
- metadata: {name: t4-b, labels: {nvidia.com/gpu.memory: "15360", pool: small, gen: "7"}}
- metadata: {name: a100, labels: {nvidia.com/gpu.memory: "40960", pool: big, gen: "8"}}
- metadata: {name: silent, labels: {nvidia.com/gpu.present: "true", pool: silent}}
- metadata: {name: cpu, labels: {pool: small}}
"""


@pytest.fixture
def nodes(tmp_path: Path) -> str:
    path = tmp_path / "nodes.yaml"
    path.write_text(NODES)
    return str(path)


def test_whole_answer(nodes: str, command: Run) -> None:
    done = command("basis", "--nodes-file", nodes)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "basis         15360 MiB",
        "nodes         3 of 4 GPU nodes",
        "              2 × 15360 MiB",
        "              1 × 40960 MiB",
        "heterogeneous yes",
        "not counted   silent: label nvidia.com/gpu.memory is missing",
        f"source        {nodes}",
    ]


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (["--selector", "pool=big"], "basis         40960 MiB"),
        (["--selector", "pool in (small,big), gen>7"], "basis         40960 MiB"),
        (["--selector", "!gen"], "basis         unknown: none of 1 GPU nodes tells its GPU's memory; silent: label"),
        (["--node-name", "a100"], "basis         40960 MiB"),
        (["--node-name", "cpu"], "basis         unknown: none of 4 GPU nodes takes shares and satisfies the pod's"),
    ],
)
def test_constraints(arguments: list[str], first: str, nodes: str, command: Run) -> None:
    done = command("basis", "--nodes-file", nodes, *arguments)
    assert done.stdout.startswith(first)
    assert done.returncode == (1 if "unknown" in first else 0)


POD = """
apiVersion: v1
kind: Pod
metadata: {name: x}
spec:
  nodeSelector: {pool: big}
  affinity:
    podAntiAffinity: {}
    nodeAffinity:
      preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {}}]
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: gen, operator: Gt, values: ["7"]}]
          matchFields: [{key: metadata.name, operator: NotIn, values: [t4-a]}]
  containers: [{name: main, image: x}]
"""


def test_constraints_of_a_pod(nodes: str, tmp_path: Path, command: Run) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text(POD)
    assert command("basis", "--nodes-file", nodes, "--pod", str(pod)).stdout.startswith("basis         40960 MiB")
    pod.write_text(POD.replace("Gt", "Lt"))
    done = command("basis", "--nodes-file", nodes, "--pod", str(pod))
    assert done.returncode == 1
    assert "unknown: none of 4 GPU nodes" in done.stdout
    pod.write_text("kind: Pod\nspec: {nodeName: t4-b, nodeSelector: {pool: big}}\n")
    assert command("basis", "--nodes-file", nodes, "--pod", str(pod)).stdout.startswith("basis         15360 MiB")


def test_override(nodes: str, command: Run) -> None:
    done = command("basis", "--nodes-file", nodes, "--selector", "pool=nowhere", PER_GPU_VRAM_MIB="8192")
    assert (done.returncode, done.stdout) == (0, "basis         8192 MiB\nsource        PER_GPU_VRAM_MIB\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--selector", "pool=(a"], ["--selector", "'pool=(a'", "key in (a,b)"]),
        (["--selector", "gen>many"], ["--selector", "'gen>many'", "key>number"]),
        (["--selector", "a=b", "--node-name", "c"], ["--selector, --node-name and --pod", "one of them"]),
        (["--pod", "/nowhere"], ["cannot read --pod /nowhere", "No such file"]),
        (["--pod", "{nodes}"], ["--pod", "spec"]),
        (["--kubeconfig", "/k"], ["--nodes-file and --kubeconfig"]),
        (["--kube-context", "x"], ["--kube-context", "--kubeconfig"]),
        (["--per-gpu-vram-mib", "8Gi"], ["PER_GPU_VRAM_MIB", "'8Gi'"]),
        (["--per-gpu-vram-mib", "0"], ["PER_GPU_VRAM_MIB", "'0'", "greater than 0"]),
    ],
)
def test_wrong_settings_end_with_2_and_one_line(
    arguments: list[str], words: list[str], nodes: str, command: Run
) -> None:
    done = command("basis", "--nodes-file", nodes, *(argument.format(nodes=nodes) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr


def test_outside_a_cluster_without_a_source(command: Run) -> None:
    for name in ("basis", "serve"):
        done = command(name)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "--kubeconfig" in done.stderr
        assert "--nodes-file" in done.stderr


def test_cluster_by_kubeconfig(tmp_path: Path, command: Run) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    with NodeApi().running() as api:
        kubeconfig.write_text(api.kubeconfig("t"))
        api.put(make_node("a", {"nvidia.com/gpu.memory": "24576"}))
        done = command("basis", "--kubeconfig", str(kubeconfig))
        assert done.stdout.splitlines()[0] == "basis         24576 MiB"
        assert done.stdout.splitlines()[-1] == f"source        {api.url}"
        assert done.stderr == ""
        api.fail(Fault(403, "nodes is forbidden"))
        done = command("basis", "--kubeconfig", str(kubeconfig))
        assert done.returncode == 1
        assert done.stderr == f"isolator-vramd: cannot read the nodes of {api.url}: 403: nodes is forbidden\n"
    done = command("basis", "--kubeconfig", str(kubeconfig))
    assert done.returncode == 1
    assert "refused" in done.stderr
    assert done.stderr.count("\n") == 1


def test_readme_names_every_setting(command: Run) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    for name in ("serve", "basis"):
        text = command(name, "--help", COLUMNS="200").stdout
        flags = re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE)
        variables = re.findall(r"\[([A-Z_]{5,})", text)
        settings = list(zip(flags, variables, strict=True))
        assert len(settings) > 6
        for flag, variable in settings:
            assert f"| `{flag}` | `{variable}` |" in readme
