"""Which nodes a pod can land on, and what a label selector means: our verdicts and Kubernetes' own, case by case."""

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isolator_testing import tools
from isolator_vramd.affinity import Constraints, Term, parse_constraints
from isolator_vramd.index import NodeIndex
from isolator_vramd.memory import Memory
from isolator_vramd.nodes import GpuNode
from isolator_vramd.selectors import parse_selector

HERE = Path(__file__).parent
WAIT_SECONDS = 600
CASES = 1500
PODS = 20
NODES = 12

Chosen = random.Random

KEYS = ["pool", "gen", "nvidia.com/gpu.memory", "a.b-c_d"]
ODD_KEYS = [
    "", "bad key", "a/b/c", "/x", "x/", "UPPER/x", "-x", "x.", "a..b/x", "é", "x" * 63, "x" * 64, "p" * 253 + "/x",
    "p" * 254 + "/x", "key\n", "a/-", "metadata.name",
]  # fmt: skip
VALUES = ["", "a", "b", "A", "5", "6", "007", "0", "40960", "a-b", "a.b_c"]
ODD_VALUES = [
    "-5", "+5", "5.0", "0x5", "1_0", "9223372036854775807", "9223372036854775808", "00000000000000000000000000000005",
    "0" * 62 + "7", "0" * 63 + "7", "bad value", "-a", "a-", "x" * 63, "x" * 64, "٣", "5\n", " 5",
]  # fmt: skip
OPERATORS = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
ODD_OPERATORS = ["", "in", "Equals", "=", "GreaterThan"]
NAMES = ["node-a", "node-b", "node-c"]


def pick(chosen: Chosen, usual: list[str], odd: list[str]) -> str:
    return chosen.choice(usual if chosen.random() < 0.93 else odd)


def requirement(chosen: Chosen) -> dict[str, Any]:
    operator = pick(chosen, OPERATORS, ODD_OPERATORS)
    usual = {"In": (1, 3), "NotIn": (1, 3), "Gt": (1, 1), "Lt": (1, 1)}.get(operator, (0, 0))
    count = chosen.randint(*usual) if chosen.random() < 0.95 else chosen.randint(0, 3)
    values = [pick(chosen, VALUES, ODD_VALUES) for _ in range(count)]
    return {"key": pick(chosen, KEYS, ODD_KEYS), "operator": operator, "values": values}


def field(chosen: Chosen) -> dict[str, Any]:
    operator = pick(chosen, ["In", "NotIn"], OPERATORS + ODD_OPERATORS)
    count = 1 if chosen.random() < 0.95 else chosen.randint(0, 2)
    values = [pick(chosen, NAMES, ["", "node", "NODE-A"]) for _ in range(count)]
    return {
        "key": pick(chosen, ["metadata.name"], ["metadata.namespace", "", "name"]),
        "operator": operator,
        "values": values,
    }


def term(chosen: Chosen) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    if chosen.random() < 0.85:
        parts["matchExpressions"] = [requirement(chosen) for _ in range(chosen.randint(0, 3))]
    if chosen.random() < 0.3:
        parts["matchFields"] = [field(chosen) for _ in range(chosen.randint(0, 2))]
    return parts


def pod(chosen: Chosen) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if chosen.random() < 0.4:
        made["nodeSelector"] = {
            pick(chosen, KEYS, ODD_KEYS): pick(chosen, VALUES, ODD_VALUES) for _ in range(chosen.randint(0, 2))
        }
    if chosen.random() < 0.9:
        made["required"] = {"nodeSelectorTerms": [term(chosen) for _ in range(chosen.randint(0, 3))]}
    return made


def selector(chosen: Chosen) -> str:
    def space() -> str:
        return " " * chosen.choice([0, 0, 0, 1])

    parts = []
    for _ in range(chosen.randint(0, 3)):
        key = pick(chosen, KEYS, ODD_KEYS)
        value = pick(chosen, VALUES, ODD_VALUES)
        values = (
            f"({','.join(space() + pick(chosen, VALUES, ODD_VALUES) + space() for _ in range(chosen.randint(1, 3)))})"
        )
        form = chosen.choice(
            [
                key,
                f"!{space()}{key}",
                f"{key}{space()}={space()}{value}",
                f"{key}{space()}=={space()}{value}",
                f"{key}{space()}!={space()}{value}",
                f"{key}{space()}>{space()}{value}",
                f"{key}{space()}<{space()}{value}",
                f"{key} in {values}",
                f"{key} notin {values}",
                f"{key} in{values}",
                f"{key} > {values}",
                f"{key} {value}",
            ]
        )
        parts.append(space() + form + space())
    return ",".join(parts)


def case(chosen: Chosen) -> dict[str, Any]:
    nodes = [
        {
            "name": f"node-{chr(ord('a') + number)}",
            "labels": {
                pick(chosen, KEYS, ODD_KEYS): pick(chosen, VALUES, ODD_VALUES) for _ in range(chosen.randint(0, 4))
            },
        }
        for number in range(NODES)
    ]
    return {
        "nodes": nodes,
        "pods": [pod(chosen) for _ in range(PODS)],
        "selectors": [selector(chosen) for _ in range(PODS)],
    }


def constraints(pod: dict[str, Any]) -> Constraints:
    required = pod.get("required")
    terms = None if required is None else msgspec.convert(required["nodeSelectorTerms"], tuple[Term, ...])
    return Constraints(pod.get("nodeSelector", {}), terms)


def verdict(index: NodeIndex, nodes: list[dict[str, Any]], asked: Constraints) -> str:
    names = {node.name for node in index.nodes(index.eligible(parse_constraints(asked)))}
    return "".join("1" if node["name"] in names else "0" for node in nodes)


def selected(index: NodeIndex, nodes: list[dict[str, Any]], text: str) -> str | None:
    try:
        requirements = parse_selector(text)
    except ValueError:
        return None
    return verdict(index, nodes, Constraints(terms=(Term(requirements),) if requirements else None))


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    go = tools.require("go", package="golang-go")
    program = tmp_path_factory.mktemp("go") / "go-affinity"
    subprocess.run([go, "build", "-buildvcs=false", "-o", program, "."], cwd=HERE, check=True, timeout=WAIT_SECONDS)
    chosen = Chosen(1337)
    cases = [case(chosen) for _ in range(CASES)]
    questions = "".join(json.dumps(case) + "\n" for case in cases)
    done = subprocess.run([program], input=questions, capture_output=True, text=True, check=True, timeout=WAIT_SECONDS)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return list(zip(cases, answers, strict=True))


def index_of(nodes: list[dict[str, Any]]) -> NodeIndex:
    index = NodeIndex()
    for node in nodes:
        index.put(GpuNode(node["name"], node["labels"], Memory(1)))
    return index


def test_constraints_of_pods(judged: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    differing, seen = [], set()
    for asked, answer in judged:
        index = index_of(asked["nodes"])
        for pod, go in zip(asked["pods"], answer["pods"], strict=True):
            seen |= set(go)
            ours = verdict(index, asked["nodes"], constraints(pod))
            if ours != go:
                differing.append((pod, asked["nodes"], ours, go))
    assert seen == {"0", "1"}
    assert differing[:3] == []


def test_label_selectors(judged: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    differing, refused = [], 0
    for asked, answer in judged:
        index = index_of(asked["nodes"])
        for text, go in zip(asked["selectors"], answer["selectors"], strict=True):
            refused += go is None
            ours = selected(index, asked["nodes"], text)
            if ours != go:
                differing.append((text, ours, go))
    assert 0 < refused < CASES * PODS
    assert differing[:20] == []
