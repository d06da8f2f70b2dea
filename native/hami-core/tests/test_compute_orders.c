/* What a monitor's orders mean. */
#include "../src/clock.h"
#include "../src/compute/orders.h"
#include "harness.h"

#define NOW (UINT64_C(1000) * NANOSECONDS_A_SECOND)

TEST(an_order_ends_when_it_is_not_given_again)
{
    CHECK_EQUAL(order_of(NOW | 1, NOW), ORDER_BOUNDED);
    CHECK_EQUAL(order_of(NOW | 2, NOW), ORDER_SHORT);
    CHECK_EQUAL(order_of(NOW | 3, NOW + ORDER_VALID), ORDER_HOLD);
    CHECK_EQUAL(order_of(NOW | 3, NOW + ORDER_VALID + 1), ORDER_NONE);
    CHECK_EQUAL(order_of(NOW | 3, NOW - NANOSECONDS_A_SECOND + 1), ORDER_HOLD); /* another processor's clock */
    CHECK_EQUAL(order_of(NOW | 3, NOW - NANOSECONDS_A_SECOND), ORDER_NONE);
    CHECK_EQUAL(order_of(NOW | 7, NOW), ORDER_HOLD); /* of a later version */
    CHECK_EQUAL(order_of(NOW, NOW), ORDER_NONE);
}

TEST(who_gives_way_has_little_on_the_card_and_nothing_long)
{
    const uint64_t most = ORDER_AT_MOST, l = 50 * ORDER_AT_MOST;
    static const enum order kinds[] = {ORDER_NONE, ORDER_BOUNDED, ORDER_SHORT, ORDER_HOLD};
    const struct {
        uint64_t ns, waiting, free;
        bool stopped[4];
    } cases[] = {
        {most, 0, 0, {false, false, false, true}},
        {most / 2, most / 2, 0, {false, false, false, true}},
        {most / 2, most / 2 + 1, 0, {false, true, true, true}},
        {most / 2, most / 2 + 1, l, {false, true, true, true}},
        {most + 1, 0, 0, {false, false, true, true}},
        {l, 0, 0, {false, false, true, true}},
        {l, 0, l, {false, false, false, true}},
        {l + 1, 0, l, {false, false, true, true}},
        {l, 1, 2 * l, {false, true, true, true}},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (unsigned kind = 0; kind < 4; kind++)
            if (order_stops(kinds[kind], cases[i].ns, cases[i].waiting, cases[i].free) != cases[i].stopped[kind])
                check_failed(__FILE__, __LINE__, "case %u, order %u", i, kind);
}
