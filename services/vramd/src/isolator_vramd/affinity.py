"""Which nodes a pod can land on: Kubernetes' rules for `nodeName`, `nodeSelector` and required node affinity.

Pure, and of one mind with Kubernetes (k8s.io/component-helpers/scheduling/corev1/nodeaffinity and
k8s.io/apimachinery/pkg/labels): constraints are compiled once to `Test`s, each about one label, and `accepts` alone
says which value of that label passes. Preferred terms do not count. Neither do taints, cordon, readiness and capacity:
they change while a pod waits, and to leave a node out for them could only raise the basis.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

NAME_FIELD = "metadata.name"

_INT64 = range(-(2**63), 2**63)
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
class Test:
    """What one label of a node must satisfy; `bound` is the number of Gt and Lt."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()
    bound: int = 0


@dataclass(frozen=True)
class CompiledTerm:
    """Tests on labels and tests on the node's fields, all of which must hold."""

    labels: tuple[Test, ...]
    fields: tuple[Test, ...]


@dataclass(frozen=True)
class Compiled:
    """Constraints ready to be held against nodes: all of `selector`, and any of `terms` unless it is None."""

    node_name: str
    selector: tuple[Test, ...]
    terms: tuple[CompiledTerm, ...] | None


def parse_int64(text: str) -> int | None:
    """The number that Go's `strconv.ParseInt(text, 10, 64)` reads, or None where it gives an error."""
    if re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII) is None:
        return None
    # Python refuses to read numbers of thousands of digits; leading zeros are the only way to stay in range with many.
    digits = text.lstrip("+-").lstrip("0") or "0"
    if len(digits) > 19:
        return None
    number = -int(digits) if text.startswith("-") else int(digits)
    return number if number in _INT64 else None


def is_label_key(key: str) -> bool:
    """Whether Kubernetes takes the key of a label (apimachinery: `validation.IsQualifiedName`)."""
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or _SUBDOMAIN.fullmatch(prefix) is None):
        return False
    return len(name) <= 63 and _NAME_PART.fullmatch(name) is not None


def is_label_value(value: str) -> bool:
    """Whether Kubernetes takes the value of a label (apimachinery: `validation.IsValidLabelValue`)."""
    return value == "" or (len(value) <= 63 and _NAME_PART.fullmatch(value) is not None)


def accepts(test: Test, value: str | None) -> bool:
    """Whether a label with this value, or None for a node without the label, satisfies the test.

    Source: apimachinery `labels.Requirement.Matches`: NotIn and DoesNotExist accept nodes without the label, Gt and Lt
    compare integers and accept nothing that is not one.
    """
    match test.operator:
        case "In":
            return value in test.values
        case "NotIn":
            return value not in test.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            number = None if value is None else parse_int64(value)
            if number is None:
                return False
            return number > test.bound if test.operator == "Gt" else number < test.bound
    raise AssertionError(f"{test.operator} was not refused by _label_test")


def _label_test(requirement: Requirement) -> Test | None:
    """The test of one expression, or None where Kubernetes cannot parse it (apimachinery: `labels.NewRequirement`)."""
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
    return Test(requirement.key, requirement.operator, frozenset(values), bound)


def _field_test(requirement: Requirement) -> Test | None:
    """The test of one field, or None where Kubernetes cannot parse it: In and NotIn with one value, nothing else.

    Source: component-helpers `nodeSelectorRequirementsAsFieldSelector`.
    """
    if requirement.operator not in ("In", "NotIn") or len(requirement.values) != 1:
        return None
    return Test(requirement.key, requirement.operator, frozenset(requirement.values))


def _compile_term(term: Term) -> CompiledTerm | None:
    """The term's tests, or None for a term that matches no node: an empty one, or one that cannot be parsed."""
    labels = tuple(map(_label_test, term.match_expressions))
    fields = tuple(map(_field_test, term.match_fields))
    if not labels + fields or None in labels + fields:
        return None
    return CompiledTerm(tuple(t for t in labels if t is not None), tuple(t for t in fields if t is not None))


def compile_constraints(constraints: Constraints) -> Compiled:
    """Parse constraints as Kubernetes does: a term that is empty or does not parse is skipped, the others count.

    Source: component-helpers `GetRequiredNodeAffinity` and `NewLazyErrorNodeSelector`; the node selector is compared
    as it is, unparsed (`labels.SelectorFromSet`). `nodeName` decides alone: such a pod passes no scheduler.
    """
    if constraints.node_name:
        return Compiled(constraints.node_name, (), None)
    terms = None
    if constraints.terms is not None:
        terms = tuple(term for term in map(_compile_term, constraints.terms) if term is not None)
    return Compiled("", tuple(Test(k, "In", frozenset({v})) for k, v in constraints.node_selector.items()), terms)


def field_value(key: str, name: str) -> str:
    """A field of the node that has this name: `metadata.name` is the only one, others are the empty string.

    Source: component-helpers `extractNodeFields`, apimachinery `fields.Set.Get`.
    """
    return name if key == NAME_FIELD else ""


def matches(compiled: Compiled, name: str, labels: Mapping[str, str]) -> bool:
    """Whether a pod with these constraints can land on the node."""
    if compiled.node_name:
        return compiled.node_name == name
    if not all(accepts(test, labels.get(test.key)) for test in compiled.selector):
        return False
    return compiled.terms is None or any(
        all(accepts(test, labels.get(test.key)) for test in term.labels)
        and all(accepts(test, field_value(test.key, name)) for test in term.fields)
        for term in compiled.terms
    )
