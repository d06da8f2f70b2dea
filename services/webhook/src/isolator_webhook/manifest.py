"""Files that a person hands to `review`: an AdmissionReview or a Pod, YAML or JSON."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonpatch
import msgspec
import yaml

from isolator_core.errors import UserError
from isolator_webhook import review
from isolator_webhook.json_patch import Operation

ACCEPTED = "accepted is one AdmissionReview of admission.k8s.io/v1 or one Pod of v1, as YAML or JSON"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was read: an AdmissionReview as bytes, the pod in it, and whether the file was JSON."""

    review: bytes
    pod: Any
    is_json: bool


def _text(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {error}") from error


def _document(file: str, text: str) -> tuple[Any, bool]:
    try:
        return json.loads(text), True
    except ValueError:
        pass
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{file} is neither YAML nor JSON: {' '.join(str(error).split())}") from error
    if len(documents) != 1:
        raise UserError(f"{file} holds {len(documents)} documents: {ACCEPTED}")
    # Through JSON, so that what YAML's anchors share becomes apart: patching one must not patch the other.
    return msgspec.json.decode(_json(file, documents[0])), False


def _json(file: str, document: Any) -> bytes:
    try:
        return msgspec.json.encode(document)
    except (TypeError, ValueError) as error:
        raise UserError(f"{file} holds what JSON cannot: {error}") from error


def review_of(pod: dict[str, Any]) -> dict[str, Any]:
    """An AdmissionReview that asks about the creation of a pod."""
    metadata = pod.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    return {
        "apiVersion": review.API_VERSION,
        "kind": "AdmissionReview",
        "request": {
            "uid": "00000000-0000-0000-0000-000000000000",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": metadata.get("namespace") or "default",
            "name": metadata.get("name") or "",
            "object": pod,
        },
    }


def read(file: str) -> Manifest:
    """Read a file, `-` for standard input. Raises UserError with what is accepted."""
    try:
        document, is_json = _document(file, _text(file))
    except RecursionError as error:
        raise UserError(f"{file} is nested too deep, or holds itself: {ACCEPTED}") from error
    kind = (document.get("apiVersion"), document.get("kind")) if isinstance(document, dict) else (None, None)
    if kind == (review.API_VERSION, "AdmissionReview"):
        request = document.get("request")
        pod = request.get("object") if isinstance(request, dict) else None
        return Manifest(_json(file, document), pod, is_json)
    if kind == ("v1", "Pod"):
        return Manifest(_json(file, review_of(document)), document, is_json)
    raise UserError(f"{file} holds {kind[1] or type(document).__name__} of {kind[0]}: {ACCEPTED}")


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines as a block, as people do."""


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _string)


def write(value: Any, *, is_json: bool) -> str:
    """A document as text, in JSON or YAML."""
    if is_json:
        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def apply(pod: Any, operations: list[Operation]) -> Any:
    """The pod with the patch applied, as the API server would."""
    return jsonpatch.apply_patch(pod, msgspec.to_builtins(operations, str_keys=True))
