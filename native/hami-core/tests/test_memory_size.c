#include "../src/memory_size.h"
#include "harness.h"

static void reads(const char *text, uint64_t wanted)
{
    uint64_t bytes = 0;
    if (memory_size_parse(span_of(text), &bytes) != SIZE_BYTES || bytes != wanted)
        check_failed(__FILE__, __LINE__, "\"%s\" is read as %llu, not %llu", text, (unsigned long long)bytes,
                     (unsigned long long)wanted);
}

static void gives(const char *text, enum size_reading wanted)
{
    uint64_t bytes;
    if (memory_size_parse(span_of(text), &bytes) != wanted)
        check_failed(__FILE__, __LINE__, "\"%s\" is not read as %d", text, wanted);
}

TEST(sizes_that_hami_core_reads_as_meant_mean_the_same)
{
    reads("1g", 1073741824);
    reads("1G", 1073741824);
    reads("1024m", 1073741824);
    reads("1048576k", 1073741824);
    reads("1073741824", 1073741824);
    reads("10 m", 10485760);
    reads(" 512m", 536870912);
    reads("0x10m", 16777216);
    reads("010m", 8388608);
    reads("50", 50);
    reads("4147m", UINT64_C(4348444672));
    reads("4147m\n", UINT64_C(4348444672));
    reads("18446744073709551615", UINT64_MAX);
}

TEST(zero_and_empty_are_no_limit)
{
    gives("", SIZE_NONE);
    gives(" ", SIZE_NONE);
    gives("0", SIZE_NONE);
    gives("0m", SIZE_NONE);
    gives("0x0", SIZE_NONE);
}

/* HAMi-core reads each of these as something, and most as no limit. */
TEST(sizes_that_can_be_read_two_ways_are_invalid)
{
    static const char *const texts[] = {"g", "abc", "1.5g", "2gb", "2GiB", "-1", "99999999999999999999", "17179869184g", "1e3m",
                                        "100%", "4Gim", "4096Mim", "-1m", "08", "0x", "0xg", "1 2m", "m4"};
    for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        gives(texts[i], SIZE_INVALID);
}
