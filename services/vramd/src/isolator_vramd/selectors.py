"""Constraints as a person writes them: a label selector as kubectl takes it, or a pod's manifest."""

import re
from collections.abc import Mapping

import msgspec

from isolator_vramd.affinity import Constraints, Requirement, Term, is_label_key, is_label_value, parse_int64
from isolator_vramd.file_source import load_yaml

_KEY = r"(?P<key>[^\s!=<>,()]+)"
_VALUE = r"(?P<value>[^\s!=<>,()]*)"
_FORMS = (
    (re.compile(rf"!\s*{_KEY}"), "DoesNotExist"),
    (re.compile(_KEY), "Exists"),
    (re.compile(rf"{_KEY}\s*==?\s*{_VALUE}"), "In"),
    (re.compile(rf"{_KEY}\s*!=\s*{_VALUE}"), "NotIn"),
    (re.compile(rf"{_KEY}\s*>\s*{_VALUE}"), "Gt"),
    (re.compile(rf"{_KEY}\s*<\s*{_VALUE}"), "Lt"),
    (re.compile(rf"{_KEY}\s+in\s*\((?P<values>[^()]*)\)"), "In"),
    (re.compile(rf"{_KEY}\s+notin\s*\((?P<values>[^()]*)\)"), "NotIn"),
)


def parse_selector(text: str) -> tuple[Requirement, ...]:
    """The requirements of a label selector (`pool=a100,zone in (a,b),!spot,gen>2`), all of which must hold.

    Source: apimachinery `labels.Parse`. Raises ValueError that names the part that is wrong and what is accepted.
    """
    return tuple(_requirement(part.strip()) for part in _split(text)) if text.strip() else ()


def _split(text: str) -> list[str]:
    return re.split(r",(?![^(]*\))", text)


def _requirement(part: str) -> Requirement:
    for form, operator in _FORMS:
        match = form.fullmatch(part)
        if match is None:
            continue
        groups = match.groupdict()
        values: tuple[str, ...] = ()
        if "values" in groups:
            values = tuple(value.strip() for value in groups["values"].split(","))
        elif "value" in groups:
            values = (groups["value"],)
        number = operator not in ("Gt", "Lt") or parse_int64(values[0]) is not None
        if number and is_label_key(groups["key"]) and all(map(is_label_value, values)):
            return Requirement(groups["key"], operator, values)
    raise ValueError(
        f"{part!r} is not a requirement; accepted are key, !key, key=value, key!=value, key>number, key<number, "
        "key in (a,b) and key notin (a,b), with commas between"
    )


class _NodeAffinity(msgspec.Struct):
    required: "_NodeSelector | None" = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class _NodeSelector(msgspec.Struct, rename="camel"):
    node_selector_terms: tuple[Term, ...] = ()


class _Affinity(msgspec.Struct, rename="camel"):
    node_affinity: _NodeAffinity | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    node_selector: Mapping[str, str] | None = None
    node_name: str | None = None
    affinity: _Affinity | None = None


class _Pod(msgspec.Struct):
    spec: _PodSpec
    kind: str = "Pod"


def constraints_of_pod(content: bytes) -> Constraints:
    """The constraints of a pod's manifest, in YAML or JSON. Raises ValueError that says what is wrong and where."""
    pod = msgspec.convert(load_yaml(content), _Pod)
    if pod.kind != "Pod":
        raise ValueError(f"kind is {pod.kind!r}; Pod is accepted")
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required if affinity else None
    return Constraints(
        pod.spec.node_selector or {},
        None if required is None else required.node_selector_terms,
        pod.spec.node_name or "",
    )
