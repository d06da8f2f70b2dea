"""One review from its bytes to its answer: the one path that the server and `review` both take."""

import uuid

import msgspec
import structlog

from isolator_core.names import REQUEST_ANNOTATION
from isolator_core.request_file import RequestFileInvalid
from isolator_webhook import ephemeral, guard, image_volumes, patch
from isolator_webhook.basis import AskBasis, Basis, Known
from isolator_webhook.decision import Deny, Share, Skip, decide
from isolator_webhook.json_patch import Operation
from isolator_webhook.options import Options, Treatment
from isolator_webhook.pod import AdmissionRequest, AdmissionReview, EphemeralContainer, Pod

API_VERSION = "admission.k8s.io/v1"

_UNREADABLE = (msgspec.MsgspecError, RecursionError)
"""What decoding may raise; the second for what is nested too deep."""

_log = structlog.get_logger()
_review_decoder = msgspec.json.Decoder(AdmissionReview)
_pod_decoder = msgspec.json.Decoder(Pod)


class Malformed(Exception):
    """Not an AdmissionReview that can be answered. Its text says what is accepted."""


class _FormerPodUnreadable(Exception):
    """An update that does not say what the pod was before."""


class _Answer(msgspec.Struct, rename="camel", omit_defaults=True):
    pass


class Status(_Answer):
    """Why a pod is refused, as kubectl shows it."""

    message: str
    reason: str
    code: int


class Response(_Answer):
    """`response` of an AdmissionReview."""

    uid: str
    allowed: bool
    status: Status | None = None
    patch_type: str | None = None
    patch: bytes | None = None
    warnings: list[str] | None = None
    audit_annotations: dict[str, str] | None = None


class ReviewAnswer(_Answer, omit_defaults=False):
    """An AdmissionReview that answers."""

    response: Response
    api_version: str = API_VERSION
    kind: str = "AdmissionReview"


class Outcome(msgspec.Struct, frozen=True):
    """What became of a pod: `result` is allowed, patched, denied, failed or failed_open; `reason` one word."""

    result: str
    reason: str
    message: str = ""
    operations: list[Operation] = msgspec.field(default_factory=list)
    notices: list[str] = msgspec.field(default_factory=list)
    audit: dict[str, str] = msgspec.field(default_factory=dict)
    findings: list[str] = msgspec.field(default_factory=list)
    code: int = 403


def decode(body: bytes) -> AdmissionReview:
    """Read an AdmissionReview. Raises Malformed with the field and what is accepted."""
    try:
        review = _review_decoder.decode(body)
    except _UNREADABLE as error:
        raise Malformed(f"not an AdmissionReview: {error}") from error
    if (review.kind, review.api_version) != ("AdmissionReview", API_VERSION):
        raise Malformed(f"got {review.kind} of {review.api_version}: accepted is AdmissionReview of {API_VERSION}")
    return review


_GUARDED: dict[Treatment, Treatment] = {"guard": "default", "guard-enforce": "enforce"}
"""How the namespaces are treated in which the guard is asked; in exempt ones a share authorises as in any other."""

_CONCERNS = {("CREATE", ""): "create", ("UPDATE", "ephemeralcontainers"): "debug"}


def _concerns(request: AdmissionRequest) -> str:
    """What the request does to a pod that concerns us: `create`, `debug` (new ephemeral containers), or nothing."""
    if (request.kind.group, request.kind.version, request.kind.kind) != ("", "v1", "Pod"):
        return ""
    return _CONCERNS.get((request.operation, request.sub_resource), "")


async def _admit(pod: Pod, ask: AskBasis, options: Options, treatment: Treatment) -> Outcome:
    decision = decide(pod, options, treatment)
    if isinstance(decision, Skip):
        return Outcome("allowed", decision.reason)
    if isinstance(decision, Deny):
        return Outcome("denied", decision.reason, decision.message)
    basis = await ask(pod.spec)
    if options.library_image is not None:
        refusal = image_volumes.refusal(basis, options.library_image)
        if refusal is not None:
            return Outcome("denied", "no_image_volumes", refusal)
    try:
        built = patch.build(pod, decision, basis, options)
    except patch.Conflict as conflict:
        return Outcome("denied", "conflict", str(conflict))
    except RequestFileInvalid as invalid:
        # What the API server has yet to check, since admission comes before validation: a container's name.
        return Outcome("denied", "malformed_pod", f"the pod is not valid: {invalid}", code=400)
    return Outcome(
        "patched",
        "exempt" if decision.exempt else "share",
        operations=built.operations,
        notices=built.notices,
        audit=_audit(decision, basis, built.notices),
    )


def _was_given_shares(pod: Pod) -> bool:
    """Whether the pod was admitted with shares, which only this annotation still says when its author took his away."""
    return any(key.startswith(REQUEST_ANNOTATION) for key in pod.annotations)


async def _debug(pod: Pod, request: AdmissionRequest, ask: AskBasis, options: Options, treatment: Treatment) -> Outcome:
    """Ephemeral containers of a pod that shares a GPU; of one that asks wrongly, or not any more, they get none."""
    decision = decide(pod, options, treatment)
    if isinstance(decision, Skip) and not (decision.reason == "no_request" and _was_given_shares(pod)):
        return Outcome("allowed", decision.reason)
    share = decision if isinstance(decision, Share) else None
    before = [container.name for container in _earlier(request)]
    basis = await ask(pod.spec)
    try:
        built = ephemeral.build(pod, before, share, basis, options)
    except patch.Conflict as conflict:
        return Outcome("denied", "conflict", str(conflict))
    added = [one.name for one in pod.spec.ephemeral_containers or () if one.name not in before]
    audit = {"ephemeral": ", ".join(added)} | _told(built.notices)
    return Outcome("patched", "ephemeral", operations=built.operations, notices=built.notices, audit=audit)


def _audit(share: Share, basis: Basis, notices: list[str]) -> dict[str, str]:
    """What the API server's audit log says about a pod; it puts the webhook's name before the keys."""
    shares = [
        f"{request.container}: {'no cap' if share.exempt else request.memory} on {request.devices} devices, "
        f"by {request.origin}"
        for request in share.requests
    ]
    audit = {"shares": "; ".join(shares), "basis": f"{basis.mib} MiB" if isinstance(basis, Known) else "unknown"}
    return audit | _told(notices)


def _told(notices: list[str]) -> dict[str, str]:
    return {"notices": "; ".join(notices)} if notices else {}


def _guard(pod: Pod, request: AdmissionRequest, options: Options, treatment: Treatment, *, created: bool) -> Outcome:
    """What the guard does about a pod: nothing, a warning, GPUs taken away, or a refusal."""
    if options.guard == "off" or request.namespace in options.guard_exempt_namespaces:
        return Outcome("allowed", "guard_off" if options.guard == "off" else "exempt_namespace")
    before = () if created else [container.name for container in _earlier(request)]
    guarded = guard.examine(pod, before, options, treatment, created=created)
    ways = [finding.way for finding in guarded.findings]
    messages = [f"{finding.message}, without having asked for a GPU" for finding in guarded.findings]
    if options.guard == "audit":
        return Outcome("allowed", "guard", notices=messages, findings=ways)
    refused = [message for message, finding in zip(messages, guarded.findings, strict=True) if not finding.remedy]
    if refused:
        accepted = "accepted is a share (gpu-memory or gpu-fraction), a limit of nvidia.com/gpu, or a resource claim"
        return Outcome("denied", "guard", f"{'; '.join(refused)}: {accepted}", findings=ways)
    if not guarded.operations:
        return Outcome("allowed", "guard", notices=messages, findings=ways)
    audit = {"without_gpu": ", ".join(guarded.voided)} | _told(messages)
    return Outcome("patched", "guard", operations=guarded.operations, notices=messages, audit=audit, findings=ways)


def _earlier(request: AdmissionRequest) -> list[EphemeralContainer]:
    """The ephemeral containers that the pod had before."""
    try:
        return _pod_decoder.decode(request.old_object).spec.ephemeral_containers or []
    except _UNREADABLE as error:
        raise _FormerPodUnreadable(error) from error


async def outcome(
    request: AdmissionRequest, ask: AskBasis, options: Options, treatment: Treatment = "default"
) -> Outcome:
    """What becomes of one request. Never raises: a fault of ours refuses the pod and is logged with an identifier."""
    concerns = _concerns(request)
    if not concerns:
        return Outcome("allowed", "no_concern")
    try:
        pod = _pod_decoder.decode(request.object)
    except _UNREADABLE as error:
        return Outcome("denied", "malformed_pod", f"the pod cannot be read: {error}", code=400)
    try:
        guarded = _GUARDED.get(treatment)
        if guarded is not None:
            return _guard(pod, request, options, guarded, created=concerns == "create")
        if concerns == "debug":
            return await _debug(pod, request, ask, options, treatment)
        return await _admit(pod, ask, options, treatment)
    except _FormerPodUnreadable as error:
        return Outcome("denied", "malformed_pod", f"the pod before cannot be read: {error}", code=400)
    except Exception:
        return _internal_error(request, options, treatment)


def _internal_error(request: AdmissionRequest, options: Options, treatment: Treatment) -> Outcome:
    identifier = uuid.uuid4().hex
    _log.exception("internal_error", error_id=identifier, uid=request.uid, namespace=request.namespace)
    fault = f"internal error of kai-resource-isolator, in its log under {identifier}"
    if treatment in _GUARDED and options.guard == "audit":
        return Outcome("failed_open", "internal_error", notices=[f"{fault}: the pod is admitted and was not looked at"])
    if options.on_internal_error == "warn":
        return Outcome("failed_open", "internal_error", notices=[f"{fault}: the pod is admitted without a cap"])
    return Outcome("failed", "internal_error", f"{fault}: the pod is not admitted", code=500)


_REASONS = {400: "BadRequest", 403: "Forbidden", 500: "InternalError"}


def respond(request: AdmissionRequest, what: Outcome) -> Response:
    """The response that tells the API server."""
    if what.result in ("denied", "failed"):
        status = Status(message=what.message, reason=_REASONS[what.code], code=what.code)
        return Response(request.uid, allowed=False, status=status)
    response = Response(request.uid, allowed=True, warnings=what.notices or None, audit_annotations=what.audit or None)
    if what.operations:
        response.patch_type = "JSONPatch"
        response.patch = msgspec.json.encode(what.operations)
    return response


class Answered(msgspec.Struct, frozen=True):
    """A review that was answered: the bytes for the API server, the request, and what became of it."""

    body: bytes
    request: AdmissionRequest
    outcome: Outcome


async def answer(body: bytes, ask: AskBasis, options: Options, treatment: Treatment = "default") -> Answered:
    """From the bytes of a review to the bytes of its answer. Raises Malformed."""
    request = decode(body).request
    what = await outcome(request, ask, options, treatment)
    return Answered(msgspec.json.encode(ReviewAnswer(respond(request, what))), request, what)
