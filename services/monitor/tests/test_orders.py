"""What a container of priority 0 does, and what it means for the others on its card."""

from hypothesis import given
from hypothesis import strategies as st

from isolator_monitor.orders import LEAST_PAUSES, LINGER_NS, LONGEST_NS, MILLISECOND, PAUSES, RESTING_NS, Order, Work

BEGIN = 10**15


def work_of(*launches: tuple[int, int]) -> Work:
    """Launches as (milliseconds since the beginning, milliseconds that they cost)."""
    work, paid = Work(), 0
    work.observe(BEGIN, paid)
    for at, cost in launches:
        paid += cost * MILLISECOND
        work.observe(BEGIN + at * MILLISECOND, paid)
    return work


def test_what_was_launched_before_the_first_look_is_done() -> None:
    work = Work()
    work.observe(BEGIN, 10**18)
    assert work.order(BEGIN) == Order.BOUNDED


def test_others_hold_while_the_work_lasts_and_may_do_little_until_it_rests() -> None:
    work = work_of((100, 10))
    end = BEGIN + 110 * MILLISECOND + LINGER_NS
    assert work.order(end - 1) == Order.HOLD
    assert work.order(end) == Order.SHORT
    assert work.order(BEGIN + 100 * MILLISECOND + RESTING_NS - 1) == Order.SHORT
    assert work.order(BEGIN + 100 * MILLISECOND + RESTING_NS) == Order.BOUNDED


def test_launches_queue() -> None:
    work = work_of((100, 10), (101, 10), (150, 10))
    assert work.until_ns == BEGIN + 160 * MILLISECOND


def test_a_region_that_was_made_anew_counts_from_there() -> None:
    work = work_of((100, 10))
    work.observe(BEGIN + 200 * MILLISECOND, 3)
    assert work.order(BEGIN + 200 * MILLISECOND) == Order.SHORT
    work.observe(BEGIN + 300 * MILLISECOND, 3 + MILLISECOND)
    assert work.until_ns == BEGIN + 301 * MILLISECOND


def test_the_next_work_is_expected_after_a_pause_as_short_as_any_lately_but_a_twentieth() -> None:
    regular = [(100 * number, 20) for number in range(LEAST_PAUSES + 1)]
    last = BEGIN + regular[-1][0] * MILLISECOND + 20 * MILLISECOND
    assert work_of(*regular[:-1]).expected_ns() == 0
    assert work_of(*regular).expected_ns() == last + 70 * MILLISECOND
    # One that came soon counts while it is more than a twentieth.
    soon = [(-28, 20), *regular]
    assert work_of(*soon).expected_ns() == last + 7 * MILLISECOND
    longer = [(-28, 20), *((100 * number, 20) for number in range(20))]
    assert work_of(*longer).expected_ns() == BEGIN + (1900 + 20 + 70) * MILLISECOND
    # And only the last are remembered.
    changed = [
        *((100 * number, 20) for number in range(20)),
        *((2000 + 28 * number, 20) for number in range(PAUSES + 1)),
    ]
    assert len(work_of(*changed).pauses) == PAUSES
    assert work_of(*changed).expected_ns() == BEGIN + (2000 + 28 * PAUSES + 20 + 7) * MILLISECOND


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(-(1 << 64), 1 << 64)), max_size=20))
def test_no_claim_holds_others_for_long(claims: list[tuple[int, int]]) -> None:
    """A tenant writes what it likes."""
    work, now = Work(), BEGIN
    for later, paid in claims:
        now += later
        work.observe(now, paid)
    assert work.order(now + LONGEST_NS + LINGER_NS) != Order.HOLD
