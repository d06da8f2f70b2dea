"""The GPU nodes, indexed so that a pod's constraints are judged against thousands of them in microseconds."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from isolator_vramd.affinity import NAME_FIELD, Check, LabelNodes, Parsed, passing
from isolator_vramd.memory import Memory, NoMemory, NoShare
from isolator_vramd.nodes import GpuNode, Software


@dataclass(frozen=True)
class Running:
    """How many nodes run the same, and the name of one of them."""

    software: Software
    nodes: int
    example: str


_Key = TypeVar("_Key")


def _discard(nodes: dict[_Key, int], key: _Key, bit: int) -> None:
    """Take a node out of the set of a key, and the key with the last one."""
    left = nodes[key] & ~bit
    if left:
        nodes[key] = left
    else:
        del nodes[key]


class _Label:
    def __init__(self) -> None:
        self._by_value: dict[str, int] = {}
        self.present = 0
        self._nodes: LabelNodes | None = None

    def add(self, value: str, bit: int) -> None:
        self._by_value[value] = self._by_value.get(value, 0) | bit
        self.present |= bit
        self._nodes = None

    def discard(self, value: str, bit: int) -> None:
        _discard(self._by_value, value, bit)
        self.present &= ~bit
        self._nodes = None

    def nodes(self) -> LabelNodes:
        """The nodes by value, to be used at once; the same until the label changes."""
        if self._nodes is None:
            self._nodes = LabelNodes(self._by_value, self.present)
        return self._nodes


class NodeIndex:
    """GPU nodes by name, by the values of their labels, by memory and by what they run.

    Each node has a bit; a set of nodes is an integer (see `affinity`). `every` is the set of all nodes, `no_memory` of
    those that do not tell their memory, `no_share` of those that take no shares.
    """

    def __init__(self) -> None:
        self.every = 0
        self.no_memory = 0
        self.no_share = 0
        self._memory: dict[int, int] = {}
        self._software: dict[Software, int] = {}
        self._labels: dict[str, _Label] = {}
        self._positions: dict[str, int] = {}
        self._nodes: list[GpuNode | None] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, name: str) -> bool:
        return name in self._positions

    def names(self) -> Iterable[str]:
        """The names of all nodes."""
        return self._positions.keys()

    def put(self, node: GpuNode) -> bool:
        """Add a node or replace the one of its name. Returns whether anything changed."""
        position = self._positions.get(node.name)
        old = None if position is None else self._nodes[position]
        if old == node:
            return False
        if position is None:
            position = self._free.pop() if self._free else len(self._nodes)
            self._positions[node.name] = position
            if position == len(self._nodes):
                self._nodes.append(None)
        bit = 1 << position
        if old is not None:
            self._forget(old, bit, kept=node.labels)
        self._nodes[position] = node
        self.every |= bit
        match node.memory:
            case Memory(mib=mib):
                self._memory[mib] = self._memory.get(mib, 0) | bit
            case NoMemory():
                self.no_memory |= bit
            case NoShare():
                self.no_share |= bit
        self._software[node.software] = self._software.get(node.software, 0) | bit
        known = {} if old is None else old.labels
        for key, value in node.labels.items():
            if known.get(key) != value:
                label = self._labels.get(key)
                if label is None:
                    label = self._labels[key] = _Label()
                label.add(value, bit)
        return True

    def remove(self, name: str) -> bool:
        """Take a node out. Returns whether it was there."""
        position = self._positions.pop(name, None)
        old = None if position is None else self._nodes[position]
        if position is None or old is None:
            return False
        self._forget(old, 1 << position, kept={})
        self._nodes[position] = None
        self._free.append(position)
        self.every &= ~(1 << position)
        return True

    def _forget(self, node: GpuNode, bit: int, *, kept: dict[str, str]) -> None:
        """Take the node's bit out of every set but those of the labels that are `kept`."""
        self.no_memory &= ~bit
        self.no_share &= ~bit
        if isinstance(node.memory, Memory):
            _discard(self._memory, node.memory.mib, bit)
        _discard(self._software, node.software, bit)
        for key, value in node.labels.items():
            if kept.get(key) != value:
                label = self._labels[key]
                label.discard(value, bit)
                if not label.present:
                    del self._labels[key]

    def eligible(self, constraints: Parsed) -> int:
        """The nodes that a pod with these constraints can land on."""
        if constraints.node_name:
            return self._named(constraints.node_name)
        nodes = self.every
        for check in constraints.selector:
            nodes &= self._passing_label(check)
        if constraints.terms is None:
            return nodes
        found = 0
        for term in constraints.terms:
            matching = nodes
            for check in term.labels:
                matching &= self._passing_label(check)
            for check in term.fields:
                matching &= self._passing_field(check)
            found |= matching
        return found

    def distribution(self, nodes: int) -> tuple[tuple[int, int], ...]:
        """How many of these nodes have how much memory, as (MiB, count), smallest first."""
        counts = ((mib, (bits & nodes).bit_count()) for mib, bits in self._memory.items())
        return tuple(sorted((mib, count) for mib, count in counts if count))

    def running(self, nodes: int) -> tuple[Running, ...]:
        """What these nodes run, in the order of the versions' letters."""
        sets = sorted((software, bits & nodes) for software, bits in self._software.items())
        return tuple(
            Running(software, found.bit_count(), next(self.nodes(found)).name) for software, found in sets if found
        )

    def nodes(self, nodes: int) -> Iterator[GpuNode]:
        """The nodes of a set."""
        while nodes:
            position = (nodes & -nodes).bit_length() - 1
            nodes &= nodes - 1
            node = self._nodes[position]
            if node is not None:
                yield node

    def _named(self, name: str) -> int:
        position = self._positions.get(name)
        return 0 if position is None else 1 << position

    def _passing_label(self, check: Check) -> int:
        label = self._labels.get(check.key)
        return passing(check, LabelNodes({}, 0) if label is None else label.nodes(), self.every)

    def _passing_field(self, check: Check) -> int:
        """`metadata.name` is the only field of a node; others are the empty string (apimachinery: `fields.Set.Get`)."""
        if check.key != NAME_FIELD:
            return passing(check, LabelNodes({"": self.every}, self.every), self.every)
        by_name = {name: self._named(name) for name in check.values}
        return passing(check, LabelNodes(by_name, self.every), self.every)
