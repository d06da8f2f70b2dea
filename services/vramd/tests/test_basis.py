"""The index of nodes and the answer drawn from it: any nodes, any changes, any constraints."""

from collections import Counter
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolator_vramd import affinity
from isolator_vramd.affinity import Constraints, Requirement, Term, parse_constraints, parse_int64
from isolator_vramd.basis import Answer, Basis, Cause, Unknown, basis_of
from isolator_vramd.index import NodeIndex, Running
from isolator_vramd.memory import Memory, NodeMemory, NoMemory, NoShare
from isolator_vramd.nodes import GpuNode, Software
from isolator_vramd.store import NodeStore

names = st.sampled_from([f"n{number}" for number in range(8)])
keys = st.sampled_from(["pool", "zone", "gen"])
values = st.sampled_from(["", "a", "b", "5", "6"])
memories: st.SearchStrategy[NodeMemory] = st.one_of(
    st.builds(Memory, st.sampled_from([100, 200, 300])),
    st.just(NoMemory("silent")),
    st.just(NoShare("cut")),
)
softwares = st.builds(Software, st.sampled_from(["v1.34.2", "v1.36.1"]), st.sampled_from(["containerd://2.2.0", ""]))
nodes = st.builds(GpuNode, names, st.dictionaries(keys, values), memories, softwares)
changes = st.lists(st.one_of(nodes, names), max_size=40)
expressions = st.one_of(
    st.builds(Requirement, keys, st.sampled_from(["In", "NotIn"]), st.lists(values, min_size=1, max_size=2).map(tuple)),
    st.builds(Requirement, keys, st.sampled_from(["Exists", "DoesNotExist"])),
    st.builds(Requirement, keys, st.sampled_from(["Gt", "Lt"]), st.tuples(st.sampled_from(["4", "5", "6"]))),
)
fields = st.builds(Requirement, st.just("metadata.name"), st.sampled_from(["In", "NotIn"]), st.tuples(names))
terms = st.builds(Term, st.lists(expressions, max_size=2).map(tuple), st.lists(fields, max_size=1).map(tuple))
constraints = st.builds(
    Constraints,
    st.dictionaries(keys, values, max_size=1),
    st.none() | st.lists(terms, max_size=3).map(tuple),
    st.just("") | names,
)


def index_of(*present: GpuNode) -> NodeIndex:
    index = NodeIndex()
    for node in present:
        index.put(node)
    return index


def eligible_names(index: NodeIndex, asked: Constraints) -> set[str]:
    return {node.name for node in index.nodes(index.eligible(parse_constraints(asked)))}


def state(index: NodeIndex) -> Any:
    """All that the index holds, in terms of names."""

    def named(bits: int) -> frozenset[str]:
        return frozenset(node.name for node in index.nodes(bits))

    return (
        named(index.every),
        named(index.no_memory),
        named(index.no_share),
        {mib: named(bits) for mib, bits in index._memory.items()},
        {software: named(bits) for software, bits in index._software.items()},
        {
            key: (named(label.present), {value: named(bits) for value, bits in label.nodes().by_value.items()})
            for key, label in index._labels.items()
        },
    )


@given(changes)
def test_index_after_any_changes_is_the_index_of_what_is_left(steps: list[GpuNode | str]) -> None:
    index, left = NodeIndex(), {}
    for step in steps:
        if isinstance(step, str):
            assert index.remove(step) == (step in left)
            left.pop(step, None)
        else:
            assert index.put(step) == (left.get(step.name) != step)
            left[step.name] = step
    assert state(index) == state(index_of(*left.values()))
    assert set(index.names()) == set(left)
    assert len(index) == len(left)


@given(st.lists(nodes, unique_by=lambda node: node.name), constraints)
def test_nodes_are_judged_one_by_one(present: list[GpuNode], asked: Constraints) -> None:
    together = eligible_names(index_of(*present), asked)
    alone = {node.name for node in present if eligible_names(index_of(node), asked)}
    assert together == alone


@given(changes, constraints)
def test_an_index_that_was_asked_before_answers_as_a_new_one(steps: list[GpuNode | str], asked: Constraints) -> None:
    index = NodeIndex()
    left: dict[str, GpuNode] = {}
    for step in steps:
        if isinstance(step, str):
            index.remove(step)
            left.pop(step, None)
        else:
            index.put(step)
            left[step.name] = step
        assert eligible_names(index, asked) == eligible_names(index_of(*left.values()), asked)


MANY = 300


@pytest.mark.parametrize("bound", [*range(3), *range(62, 67), 127, 128, 150, MANY - 1, MANY])
def test_comparisons_among_many_values(bound: int) -> None:
    ranks = {f"n{number}": number for number in range(MANY)}
    index = index_of(*(GpuNode(name, {"rank": str(rank)}, Memory(1)) for name, rank in ranks.items()))
    index.put(GpuNode("other", {"rank": "none"}, Memory(1)))

    def compared(operator: str) -> set[str]:
        return eligible_names(index, Constraints(terms=(Term((Requirement("rank", operator, (str(bound),)),)),)))

    assert compared("Gt") == {name for name, rank in ranks.items() if rank > bound}
    assert compared("Lt") == {name for name, rank in ranks.items() if rank < bound}


def test_values_are_read_once_for_all_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of(*(GpuNode(f"n{number}", {"rank": str(number)}, Memory(1)) for number in range(MANY)))
    read = Mock(side_effect=parse_int64)
    monkeypatch.setattr(affinity, "_number", read)
    term = Term(tuple(Requirement("rank", "Gt", (str(bound),)) for bound in range(16)))
    for _ in range(2):
        assert len(eligible_names(index, Constraints(terms=(term,)))) == MANY - 16
    assert read.call_count == MANY


@given(st.lists(nodes, unique_by=lambda node: node.name), constraints)
def test_what_eligible_nodes_run_is_counted(present: list[GpuNode], asked: Constraints) -> None:
    store = NodeStore(None, lambda: 0.0)
    store.replace(present)
    chosen = eligible_names(store.index, asked)
    taking = [node for node in present if node.name in chosen and not isinstance(node.memory, NoShare)]
    found = store.running(parse_constraints(asked))
    assert Counter({running.software: running.nodes for running in found}) == Counter(node.software for node in taking)
    assert all(running.software == store_node(taking, running).software for running in found)


def store_node(among: list[GpuNode], running: Running) -> GpuNode:
    (node,) = [node for node in among if node.name == running.example]
    return node


def answer_of(present: list[GpuNode], asked: Constraints) -> Answer:
    return basis_of(index_of(*present), parse_constraints(asked))


@given(st.lists(nodes, unique_by=lambda node: node.name), constraints)
def test_basis_is_the_smallest_that_an_eligible_node_tells(present: list[GpuNode], asked: Constraints) -> None:
    chosen = eligible_names(index_of(*present), asked)
    eligible = [node.memory for node in present if node.name in chosen]
    known = sorted(memory.mib for memory in eligible if isinstance(memory, Memory))
    silent = sum(isinstance(memory, NoMemory) for memory in eligible)
    answer = answer_of(present, asked)
    if isinstance(answer, Basis):
        assert answer.basis_mib == known[0]
        assert [mib for mib, count in answer.distribution for _ in range(count)] == known
        assert answer.nodes == len(known)
        assert answer.heterogeneous == (len(set(known)) > 1)
        assert answer.nodes_without_memory == silent
        assert not answer.override
    else:
        assert known == []
        assert (answer.cause is Cause.NO_MEMORY) == (silent > 0)
        assert (answer.cause is Cause.NO_GPU_NODE) == all(isinstance(node.memory, NoShare) for node in present)
        assert answer.reason


@given(st.lists(nodes, unique_by=lambda node: node.name), constraints, expressions)
def test_another_constraint_never_lowers_the_basis(
    present: list[GpuNode], asked: Constraints, more: Requirement
) -> None:
    # An empty term matches nothing, and would match something with a requirement in it.
    filled = [term for term in asked.terms or () if term.match_expressions or term.match_fields]
    if asked.terms is None:
        filled = [Term()]
    narrowed = tuple(Term((*term.match_expressions, more), term.match_fields) for term in filled)
    narrower = Constraints(asked.node_selector, narrowed, asked.node_name)
    wide, narrow = answer_of(present, asked), answer_of(present, narrower)
    if isinstance(narrow, Basis):
        assert isinstance(wide, Basis)
        assert wide.basis_mib <= narrow.basis_mib


@given(st.lists(nodes), st.lists(nodes), changes)
def test_store_tells_of_a_change_when_there_is_one(
    first: list[GpuNode], second: list[GpuNode], steps: list[GpuNode | str]
) -> None:
    store = NodeStore(None, lambda: 0.0)
    store.replace(first)
    for apply in (
        lambda: store.replace(second),
        lambda: store.apply([(s, None) if isinstance(s, str) else (s.name, s) for s in steps]),
    ):
        before, version = state(store.index), store.version
        apply()
        if state(store.index) != before:
            assert store.version == version + 1
    store.replace(second)
    assert state(store.index) == state(index_of(*second))
    version = store.version
    store.replace(list({node.name: node for node in second}.values()))
    assert store.version == version


@pytest.mark.parametrize(
    ("present", "asked", "cause", "words"),
    [
        ([], Constraints(), Cause.NO_GPU_NODE, "there is no GPU node"),
        ([GpuNode("m", {}, NoShare("it is cut"))], Constraints(), Cause.NO_GPU_NODE, "m: it is cut"),
        ([GpuNode("s", {}, NoMemory("no label"))], Constraints(), Cause.NO_MEMORY, "none of 1 GPU nodes"),
        ([GpuNode("s", {}, NoMemory("no label"))], Constraints(), Cause.NO_MEMORY, "s: no label"),
        ([GpuNode("a", {}, Memory(1))], Constraints(terms=()), Cause.NONE_ELIGIBLE, "none of 1 GPU nodes"),
        (
            [GpuNode("a", {}, Memory(1)), GpuNode("m", {}, NoShare("it is cut"))],
            Constraints(node_name="m"),
            Cause.NONE_ELIGIBLE,
            "m: it is cut",
        ),
    ],
)
def test_why_a_basis_is_unknown(present: list[GpuNode], asked: Constraints, cause: Cause, words: str) -> None:
    answer = answer_of(present, asked)
    assert isinstance(answer, Unknown)
    assert answer.cause is cause
    assert words in answer.reason


def test_no_stale_number_after_the_last_gpu_node_left() -> None:
    store = NodeStore(None, lambda: 0.0)
    every = parse_constraints(Constraints())
    store.replace([GpuNode("a", {}, Memory(15360))])
    assert store.answer(every) == Basis(15360, ((15360, 1),))
    store.apply([("a", None)])
    assert store.answer(every) == Unknown(Cause.NO_GPU_NODE, "there is no GPU node that takes shares")


def test_age_is_that_of_the_last_confirmation() -> None:
    now = 100.0
    store = NodeStore(None, lambda: now)
    assert store.age_seconds() is None
    store.replace([])
    now = 3700.0
    assert store.age_seconds() == 3600
    store.confirm()
    assert store.age_seconds() == 0


@given(st.integers(), st.sampled_from(["", "+", "-"]), st.integers(0, 5000))
def test_int64_of_any_length(number: int, sign: str, zeros: int) -> None:
    text = sign + "0" * zeros + str(abs(number))
    value = -abs(number) if sign == "-" else abs(number)
    assert parse_int64(text) == (value if -(2**63) <= value < 2**63 else None)
