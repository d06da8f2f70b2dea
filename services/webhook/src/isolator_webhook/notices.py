"""What the author of a pod is told about its share once the basis is known, or is not."""

from collections.abc import Iterable

from isolator_core import names, portion
from isolator_core.requests import WHOLE, Fraction, Memory, Request
from isolator_webhook.basis import Basis, Known
from isolator_webhook.wanted import product_mib


def _of_fraction(request: Request, fraction: Fraction) -> str | None:
    """A fraction that KAI's two decimals turn into nothing, or into a whole card."""
    if fraction == WHOLE:
        return None
    rounded = portion.portion_text(fraction.value)
    if rounded == "0.00":
        return (
            f"container {request.container}: KAI rounds gpu-fraction {fraction.decimal} to {rounded} and gives no "
            "limit for that; the fraction itself is enforced"
        )
    if rounded == "1.00":
        return (
            f"container {request.container}: KAI rounds gpu-fraction {fraction.decimal} to {rounded}: its limit is "
            "the whole card"
        )
    return None


def _of_memory(request: Request, memory: Memory, basis: Known) -> str | None:
    """Memory that no card has, or that takes a whole one."""
    smallest, largest = portion.floored_card_mib(basis.mib), portion.floored_card_mib(basis.most_mib)
    if not portion.fits_card(portion.portion_of_memory(memory.mib, largest)):
        return (
            f"container {request.container}: {memory} fit no GPU that the pod can land on: of the largest, with "
            f"{basis.most_mib} MiB, KAI gives at most {largest}"
        )
    taken = portion.portion_of_memory(memory.mib, smallest)
    if portion.fits_card(taken) and portion.portion_text(taken) == "1.00":
        return f"container {request.container}: KAI rounds {memory} to the whole of a GPU with {basis.mib} MiB"
    return None


def _mib(request: Request, basis: Known) -> int:
    return request.memory.mib if isinstance(request.memory, Memory) else product_mib(request.memory, basis.mib)


def of_basis(requests: Iterable[Request], basis: Basis) -> list[str]:
    """A sentence for each share that the basis, or the lack of it, puts in doubt."""
    found = []
    requests = list(requests)
    for request in requests:
        if isinstance(request.memory, Fraction):
            found.append(_of_fraction(request, request.memory))
            if not isinstance(basis, Known):
                found.append(
                    f"container {request.container}: {names.LIMIT_KEY} is not set in its environment, since no basis "
                    f"is known for fraction {request.memory.decimal}; the cap itself holds: {basis.reason}"
                )
        elif isinstance(basis, Known):
            found.append(_of_memory(request, request.memory, basis))
    if isinstance(basis, Known) and len(requests) > 1:
        total = sum(_mib(request, basis) for request in requests)
        if total > basis.mib:
            found.append(
                f"the limits of this pod's containers sum up to {total} MiB, more than the {basis.mib} MiB of one GPU: "
                "on one card they cannot all be used at once"
            )
    return [sentence for sentence in found if sentence is not None]
