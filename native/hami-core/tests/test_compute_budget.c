/* The compute cap's arithmetic, which needs no driver. */
#include "../src/compute/bucket.h"
#include "../src/compute/costs.h"
#include "../src/compute/trim.h"
#include "harness.h"

#define SECOND UINT64_C(1000000000)
#define MILLISECOND UINT64_C(1000000)

TEST(a_bucket_begins_with_its_burst_and_refills_with_its_part_of_the_time)
{
    struct compute_bucket bucket = {.balance = 0};
    bucket_refill(&bucket, 5 * SECOND, 30);
    CHECK_EQUAL(bucket.balance, BUCKET_BURST);
    bucket_pay(&bucket, 20 * (int64_t)MILLISECOND);
    CHECK_EQUAL(bucket.balance, -10 * (int64_t)MILLISECOND);
    bucket_refill(&bucket, 5 * SECOND + 10 * MILLISECOND, 30);
    CHECK_EQUAL(bucket.balance, -7 * (int64_t)MILLISECOND);
    bucket_refill(&bucket, 9 * SECOND, 30);
    CHECK_EQUAL(bucket.balance, BUCKET_BURST);
}

TEST(a_debt_is_owed_whatever_is_paid_at_once)
{
    struct compute_bucket bucket = {.balance = 0};
    uint64_t now = SECOND, used = 0;
    bucket_refill(&bucket, now, 25);
    for (unsigned i = 0; i < 1000; i++) {
        uint64_t cost = (i % 7 + 1) * 30 * MILLISECOND;
        now += bucket_wait(bucket_balance(&bucket), 25);
        bucket_refill(&bucket, now, 25);
        CHECK(bucket_balance(&bucket) > 0);
        bucket_pay(&bucket, bucket_price(&bucket, cost));
        used += cost;
    }
    now += bucket_wait(bucket_balance(&bucket), 25);
    CHECK(used * 4 >= (now - SECOND) && used * 4 <= (now - SECOND) + 8 * (uint64_t)BUCKET_BURST);
}

TEST(the_same_stretch_of_time_is_refilled_once)
{
    struct compute_bucket bucket = {.balance = 0};
    bucket_refill(&bucket, SECOND, 50);
    bucket_pay(&bucket, 50 * (int64_t)MILLISECOND);
    bucket_refill(&bucket, SECOND + 20 * MILLISECOND, 50);
    bucket_refill(&bucket, SECOND + 10 * MILLISECOND, 50); /* of a thread that read the clock before */
    bucket_refill(&bucket, SECOND + 20 * MILLISECOND, 50);
    CHECK_EQUAL(bucket.balance, -30 * (int64_t)MILLISECOND);
}

TEST(a_restart_of_the_machine_does_not_stop_the_refill)
{
    struct compute_bucket bucket = {.balance = -1000, .refilled_at = 900 * SECOND};
    bucket_refill(&bucket, 3 * SECOND, 50);
    CHECK_EQUAL(bucket.balance, -1000);
    bucket_refill(&bucket, 3 * SECOND + 4000, 50);
    CHECK_EQUAL(bucket.balance, 1000);
}

TEST(the_wait_is_the_debt_at_the_caps_speed)
{
    CHECK_EQUAL(bucket_wait(1, 30), 0);
    CHECK_EQUAL(bucket_wait(0, 100), 2);
    CHECK(bucket_wait(-30 * (int64_t)MILLISECOND, 30) - 100 * MILLISECOND < 10);
}

TEST(prices_follow_the_factor)
{
    struct compute_bucket bucket = {.factor = 0};
    CHECK_EQUAL(bucket_price(&bucket, 1000), 1000);
    bucket.factor = FACTOR_ONE / 2;
    CHECK_EQUAL(bucket_price(&bucket, 1000), 500);
}

TEST(the_factor_moves_by_the_square_root_and_stays_in_bounds)
{
    const uint64_t used = 300 * MILLISECOND;
    CHECK_EQUAL(trim_factor(0, used, (int64_t)used), FACTOR_ONE);
    CHECK(trim_factor(FACTOR_ONE, 200 * MILLISECOND, 800 * (int64_t)MILLISECOND) == FACTOR_ONE / 2);
    CHECK_EQUAL(trim_factor(FACTOR_ONE, 800 * MILLISECOND, 200 * (int64_t)MILLISECOND), 2 * FACTOR_ONE);
    CHECK_EQUAL(trim_factor(FACTOR_MOST, used, 100 * (int64_t)MILLISECOND), FACTOR_MOST);
    CHECK_EQUAL(trim_factor(FACTOR_LEAST, 100 * MILLISECOND, (int64_t)used), FACTOR_LEAST);
    CHECK_EQUAL(trim_factor(FACTOR_ONE / 3, 20 * MILLISECOND, (int64_t)used), FACTOR_ONE / 3); /* too little to tell */
    CHECK_EQUAL(trim_factor(FACTOR_ONE, used, 0), 2 * FACTOR_ONE);
    CHECK_EQUAL(trim_factor(FACTOR_ONE / 3, used, 309 * (int64_t)MILLISECOND), FACTOR_ONE / 3); /* within NVML's rounding */
}

TEST(what_was_paid_is_known_for_a_window_that_is_over)
{
    struct paid_history history = {.count = 0};
    int64_t paid;
    CHECK(!paid_between(&history, 1, 2, &paid));
    for (unsigned i = 0; i < 100; i++)
        paid_note(&history, i * 250 * MILLISECOND, i * i * (int64_t)MILLISECOND);
    CHECK(paid_between(&history, 14000 * MILLISECOND, 14500 * MILLISECOND, &paid));
    CHECK_EQUAL(paid, (58 * 58 - 56 * 56) * MILLISECOND);
    CHECK(paid_between(&history, 14125 * MILLISECOND, 14500 * MILLISECOND, &paid));
    CHECK_EQUAL(paid, (58 * 58 * 2 - 56 * 56 - 57 * 57) * MILLISECOND / 2);
    CHECK(!paid_between(&history, 8000 * MILLISECOND, 12000 * MILLISECOND, &paid));  /* too long ago */
    CHECK(!paid_between(&history, 24000 * MILLISECOND, 25000 * MILLISECOND, &paid)); /* not yet */
    paid_note(&history, 99 * 250 * MILLISECOND + 1, 0); /* too soon to count */
    CHECK(paid_between(&history, 24500 * MILLISECOND, 24750 * MILLISECOND, &paid));
    CHECK_EQUAL(paid, (99 * 99 - 98 * 98) * MILLISECOND);
}

static uint64_t learned(const uint64_t *samples, unsigned count)
{
    static struct costs costs;
    struct cost *cost = costs_find(&costs, cost_key((uintptr_t)samples, 1, 1));
    for (unsigned i = 0; i < count; i++)
        cost_learn(cost, samples[i]);
    return cost->ns;
}

TEST(a_cost_is_the_mean_of_the_samples_near_the_smallest)
{
    CHECK_EQUAL(learned((uint64_t[]){550000}, 1), 550000);                 /* the first run loads code */
    CHECK_EQUAL(learned((uint64_t[]){550000, 50000}, 2), 50000);
    CHECK_EQUAL(learned((uint64_t[]){48000, 50000, 52000}, 3), 50000);
    CHECK_EQUAL(learned((uint64_t[]){50000, 2050000, 4050000, 50000}, 4), 50000); /* slices of others */
    CHECK_EQUAL(learned((uint64_t[]){0}, 1), 1);
}

TEST(a_cost_forgets_after_as_many_samples_as_it_keeps)
{
    static struct costs costs;
    struct cost *cost = costs_find(&costs, 7);
    cost_learn(cost, 1000);
    for (unsigned i = 0; i < COST_SAMPLES; i++)
        cost_learn(cost, 50000);
    CHECK_EQUAL(cost->ns, 50000);
}

TEST(few_launches_of_short_kernels_are_timed_and_all_of_long_ones)
{
    static struct costs costs;
    struct cost *small = costs_find(&costs, 1), *large = costs_find(&costs, 3);
    unsigned timed = 0;
    for (unsigned i = 0; i < 10000; i++)
        if (cost_is_due(small)) {
            timed++;
            cost_learn(small, 50000);
        }
    CHECK(timed > 240 && timed < 270); /* each 41st, and the first 16 */
    for (unsigned i = 0; i < 100; i++) {
        CHECK(cost_is_due(large));
        cost_learn(large, 50 * MILLISECOND);
    }
}

TEST(costs_are_kept_apart_and_the_table_never_overflows)
{
    static struct costs costs;
    for (uint64_t i = 1; i <= 3 * COSTS; i++) {
        struct cost *cost = costs_find(&costs, cost_key(i << 12, 1, 256));
        CHECK_EQUAL(cost->ns, 0);
        cost_learn(cost, i);
        CHECK(costs_find(&costs, cost_key(i << 12, 1, 256)) == cost);
    }
    CHECK(cost_key(1, 2, 3) != cost_key(1, 3, 2));
    CHECK(cost_key(1, 2, 3) != cost_key(2, 2, 3));
}
