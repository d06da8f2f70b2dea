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
            f"limit for that; {request.memory} is enforced"
        )
    if rounded == "1.00":
        return (
            f"container {request.container}: KAI rounds gpu-fraction {fraction.decimal} to {rounded}: it takes "
            f"the whole card{'' if request.reserved else ', which is its limit'}"
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


def of_basis(requests: Iterable[Request], basis: Basis, *, by_kai: bool) -> list[str]:
    """A sentence for each share that the basis, or the lack of it, puts in doubt.

    `by_kai`: it is asked for in a way that KAI reads, so what KAI makes of it is told.
    """
    found = []
    requests = list(requests)
    for request in requests:
        placed = request.guaranteed
        if by_kai and isinstance(placed, Fraction):
            found.append(_of_fraction(request, placed))
        elif by_kai and isinstance(placed, Memory) and isinstance(basis, Known):
            found.append(_of_memory(request, placed, basis))
        if isinstance(request.memory, Fraction) and not isinstance(basis, Known):
            found.append(
                f"container {request.container}: {names.LIMIT_KEY} is not set in its environment, since no basis "
                f"is known for {request.memory}; the cap itself holds: {basis.reason}"
            )
    if isinstance(basis, Known) and len(requests) > 1:
        total = sum(_mib(request, basis) for request in requests)
        if total > basis.mib:
            found.append(
                f"the limits of this pod's containers sum up to {total} MiB, more than the {basis.mib} MiB of one GPU: "
                "on one card they cannot all be used at once"
            )
    return [sentence for sentence in found if sentence is not None]
