"""Which nodes a pod can land on: Kubernetes' rules for `nodeName`, `nodeSelector` and required node affinity.

Pure, and of one mind with Kubernetes (k8s.io/component-helpers/scheduling/corev1/nodeaffinity and
k8s.io/apimachinery/pkg/labels): constraints are parsed once to `Check`s, each about one label, and `passing` alone
says which nodes satisfy one. Sets of nodes are integers, a bit a node, so that thousands of nodes are judged in one
operation. Preferred terms do not count. Neither do taints, cordon, readiness and capacity: they change while a pod
waits, and to leave a node out for them could only raise the basis.
"""

import bisect
import functools
import itertools
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from isolator_core.go_numbers import MOST_INT64, parse_uint

NAME_FIELD = "metadata.name"

_NAME_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class Requirement(msgspec.Struct, frozen=True):
    """One `matchExpressions` or `matchFields` entry as the pod's author wrote it."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class Term(msgspec.Struct, frozen=True, rename="camel"):
    """One term of required node affinity: everything in it must hold."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class Constraints(msgspec.Struct, frozen=True):
    """What narrows the nodes of a pod. `terms` is None where the pod has no required node affinity."""

    node_selector: Mapping[str, str] = {}
    terms: tuple[Term, ...] | None = None
    node_name: str = ""


@dataclass(frozen=True)
class Check:
    """What one label of a node must satisfy; `bound` is the number of Gt and Lt."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()
    bound: int = 0


@dataclass(frozen=True)
class ParsedTerm:
    """Checks of labels and checks of the node's fields, all of which must hold."""

    labels: tuple[Check, ...]
    fields: tuple[Check, ...]


@dataclass(frozen=True)
class Parsed:
    """Constraints ready to be held against nodes: all of `selector`, and any of `terms` unless it is None."""

    node_name: str
    selector: tuple[Check, ...]
    terms: tuple[ParsedTerm, ...] | None


def parse_int64(text: str) -> int | None:
    """The number that Go's `strconv.ParseInt(text, 10, 64)` reads, or None where it gives an error."""
    value = parse_uint(text[1:] if text[:1] in ("+", "-") else text)
    if value is None:
        return None
    number = -value if text.startswith("-") else value
    return number if -MOST_INT64 - 1 <= number <= MOST_INT64 else None


def is_label_key(key: str) -> bool:
    """Whether Kubernetes takes the key of a label (apimachinery: `validation.IsQualifiedName`)."""
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or _SUBDOMAIN.fullmatch(prefix) is None):
        return False
    return len(name) <= 63 and _NAME_PART.fullmatch(name) is not None


def is_label_value(value: str) -> bool:
    """Whether Kubernetes takes the value of a label (apimachinery: `validation.IsValidLabelValue`)."""
    return value == "" or (len(value) <= 63 and _NAME_PART.fullmatch(value) is not None)


def union(sets: Iterable[int]) -> int:
    """The nodes that are in any of the sets."""
    return functools.reduce(operator.or_, sets, 0)


# Of the values of nodes' labels alone, which are short, and the same each time that a label is put in order.
_number = functools.lru_cache(maxsize=1 << 14)(parse_int64)

_STRIDE = 64


class Numbers:
    """The nodes whose label is an integer, in its order, so that a comparison looks at few of thousands of values."""

    def __init__(self, by_value: Mapping[str, int]) -> None:
        numbers = ((_number(value), nodes) for value, nodes in by_value.items())
        found = sorted((number, nodes) for number, nodes in numbers if number is not None)
        self._numbers = [number for number, _ in found]
        self._nodes = [nodes for _, nodes in found]
        self._every = union(self._nodes)
        # Of each stride's first number, the nodes before: one for each number would be megabytes.
        strides = (union(self._nodes[start : start + _STRIDE]) for start in range(0, len(found), _STRIDE))
        self._before = list(itertools.accumulate(strides, operator.or_, initial=0))

    def _first(self, count: int) -> int:
        """The nodes of so many numbers, from the smallest."""
        stride = count // _STRIDE
        return self._before[stride] | union(self._nodes[stride * _STRIDE : count])

    def above(self, bound: int) -> int:
        """The nodes with a greater number; a node has one."""
        return self._every & ~self._first(bisect.bisect_right(self._numbers, bound))

    def below(self, bound: int) -> int:
        """The nodes with a smaller number."""
        return self._first(bisect.bisect_left(self._numbers, bound))


@dataclass(frozen=True)
class LabelNodes:
    """The nodes of each value of one label, and all the nodes that have the label, as they are now."""

    by_value: Mapping[str, int]
    present: int

    @functools.cached_property
    def numbers(self) -> Numbers:
        """Read once, at the first comparison: each node may have a value of its own."""
        return Numbers(self.by_value)


def passing(check: Check, label: LabelNodes, every: int) -> int:
    """Those of `every` node whose label satisfies the check.

    Source: apimachinery `labels.Requirement.Matches`: NotIn and DoesNotExist accept nodes without the label, Gt and Lt
    compare integers and accept nothing that is not one.
    """
    match check.operator:
        case "In":
            return union(label.by_value.get(value, 0) for value in check.values)
        case "NotIn":
            return every & ~union(label.by_value.get(value, 0) for value in check.values)
        case "Exists":
            return label.present
        case "DoesNotExist":
            return every & ~label.present
        case "Gt":
            return label.numbers.above(check.bound)
        case "Lt":
            return label.numbers.below(check.bound)
    raise AssertionError(f"{check.operator} was not refused while parsing")


def _label_check(requirement: Requirement) -> Check | None:
    """The check of one expression, or None where Kubernetes cannot parse it (apimachinery: `labels.NewRequirement`)."""
    values, bound = requirement.values, 0
    match requirement.operator:
        case "In" | "NotIn":
            valid = len(values) > 0
        case "Exists" | "DoesNotExist":
            valid = len(values) == 0
        case "Gt" | "Lt":
            number = parse_int64(values[0]) if len(values) == 1 else None
            valid, bound = number is not None, number or 0
        case _:
            valid = False
    if not (valid and is_label_key(requirement.key) and all(map(is_label_value, values))):
        return None
    return Check(requirement.key, requirement.operator, frozenset(values), bound)


def _field_check(requirement: Requirement) -> Check | None:
    """The check of one field, or None where Kubernetes cannot parse it: In and NotIn with one value, nothing else.

    Source: component-helpers `nodeSelectorRequirementsAsFieldSelector`.
    """
    if requirement.operator not in ("In", "NotIn") or len(requirement.values) != 1:
        return None
    return Check(requirement.key, requirement.operator, frozenset(requirement.values))


def _parse_term(term: Term) -> ParsedTerm | None:
    """The term's checks, or None for a term that matches no node: an empty one, or one that cannot be parsed."""
    labels = tuple(map(_label_check, term.match_expressions))
    fields = tuple(map(_field_check, term.match_fields))
    if not labels + fields or None in labels + fields:
        return None
    return ParsedTerm(tuple(t for t in labels if t is not None), tuple(t for t in fields if t is not None))


def parse_constraints(constraints: Constraints) -> Parsed:
    """Parse constraints as Kubernetes does: a term that is empty or does not parse is skipped, the others count.

    Source: component-helpers `GetRequiredNodeAffinity` and `NewLazyErrorNodeSelector`; the node selector is compared
    as it is, unparsed (`labels.SelectorFromSet`). `nodeName` decides alone: such a pod passes no scheduler.
    """
    if constraints.node_name:
        return Parsed(constraints.node_name, (), None)
    terms = None
    if constraints.terms is not None:
        terms = tuple(term for term in map(_parse_term, constraints.terms) if term is not None)
    return Parsed("", tuple(Check(k, "In", frozenset({v})) for k, v in constraints.node_selector.items()), terms)
