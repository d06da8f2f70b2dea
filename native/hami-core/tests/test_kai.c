#include "../src/kai.h"
#include "harness.h"

static struct fraction fraction(const char *text)
{
    struct fraction parsed;
    if (!fraction_parse(span_of(text), &parsed))
        check_failed(__FILE__, __LINE__, "\"%s\" is not taken as a fraction", text);
    return parsed;
}

/* Values of KAI's own arithmetic: label, request, portion in hundredths, limit in MiB. */
TEST(memory_requests_give_kais_portion_and_limit)
{
    static const struct {
        uint64_t label, request, portion, limit;
    } rows[] = {
        {15360, 100, 1, 153},     {15360, 1024, 7, 1075},   {15360, 2048, 14, 2150},
        {15360, 4096, 27, 4147},  {15360, 8192, 54, 8294},  {15360, 10240, 67, 10291},
        {16384, 100, 1, 163},     {16384, 1024, 7, 1146},   {16384, 2048, 13, 2129},
        {16384, 4096, 26, 4259},  {16384, 8192, 51, 8355},  {16384, 10240, 63, 10321},
        {24564, 100, 1, 245},     {24564, 1024, 5, 1228},   {24564, 2048, 9, 2210},
        {24564, 4096, 17, 4175},  {24564, 8192, 34, 8351},  {24564, 10240, 42, 10316},
        {40960, 100, 1, 409},     {40960, 1024, 3, 1228},   {40960, 2048, 6, 2457},
        {40960, 4096, 11, 4505},  {40960, 8192, 21, 8601},  {40960, 10240, 26, 10649},
        {81559, 100, 1, 815},     {81559, 1024, 2, 1631},   {81559, 2048, 3, 2446},
        {81559, 4096, 6, 4893},   {81559, 8192, 11, 8971},  {81559, 10240, 13, 10602},
        {143771, 100, 1, 1437},   {143771, 1024, 1, 1437},  {143771, 2048, 2, 2875},
        {143771, 4096, 3, 4313},  {143771, 8192, 6, 8626},  {143771, 10240, 8, 11501},
        /* A ceiling on float64: 1071 / 15300 * 100 is 7.000000000000001. */
        {15360, 1071, 8, 1228},
        {15360, 1020, 7, 1075},   {16384, 1020, 7, 1146},   {15360, 15300, 100, 15360},
    };
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        CHECK_EQUAL(kai_portion_of_memory(rows[i].request, rows[i].label), rows[i].portion);
        CHECK_EQUAL(kai_limit_mib((unsigned)rows[i].portion, rows[i].label), rows[i].limit);
    }
}

TEST(fractions_give_kais_portion_and_limit)
{
    static const struct {
        const char *text;
        uint64_t portion, limit;
    } rows[] = {
        {"0.5", 50, 7680},    {"0.333", 33, 5068}, {"0.335", 34, 5222},   {"0.125", 12, 1843},
        {"0.995", 99, 15206}, {"0.996", 100, 15360}, {"0.999", 100, 15360}, {"0.004", 0, 0},
        {"0.0049", 0, 0},     {"0.001", 0, 0},     {".5", 50, 7680},      {"0.25", 25, 3840},
        {"1", 100, 15360},    {"0.3333333333333333", 33, 5068},
        {"0.333333333333333333333333333", 33, 5068}, {"0.9999999999999999", 100, 15360},
        {"0.005", 1, 153},    {"0.375", 38, 5836}, {"0.045", 4, 614}, {"0.055", 6, 921},
    };
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        unsigned portion = kai_portion_of_fraction(fraction(rows[i].text));
        CHECK_EQUAL(portion, rows[i].portion);
        CHECK_EQUAL(kai_limit_mib(portion, 15360), rows[i].limit);
    }
}

TEST(limits_of_memory_requests_are_never_below_the_request)
{
    static const uint64_t labels[] = {8192, 11441, 15360, 16384, 24564, 40960, 46068, 81559, 143771};
    for (unsigned i = 0; i < sizeof(labels) / sizeof(labels[0]); i++)
        for (uint64_t request = 1; request <= labels[i] - labels[i] % 100; request++)
            CHECK(kai_limit_mib(kai_portion_of_memory(request, labels[i]), labels[i]) >= request);
}

TEST(a_fraction_multiplies_exactly)
{
    CHECK_EQUAL(fraction_of(fraction("0.5"), 15360 * MIB), 7680 * MIB);
    CHECK_EQUAL(fraction_of(fraction("0.1"), 1000), 100);
    CHECK_EQUAL(fraction_of(fraction("0.333"), 1000), 333);
    CHECK_EQUAL(fraction_of(fraction("1"), 1000), 1000);
    /* Never 0, which would be no limit. */
    CHECK_EQUAL(fraction_of(fraction("0.000000001"), 1000), 1);
    CHECK_EQUAL(fraction_of(fraction("0.999999999999999999"), 192 * 1024 * MIB), 192 * 1024 * MIB - 1);
}

TEST(what_is_not_a_fraction_is_refused)
{
    static const char *const texts[] = {"", ".", "0", "0.0", "1.1", "2", "-0.5", "+0.5", "0.5 ", "5e-1", "1.0.0", "0,5", "NaN",
                                        "99999999999999999999", "0x1"};
    struct fraction parsed;
    for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (fraction_parse(span_of(texts[i]), &parsed))
            check_failed(__FILE__, __LINE__, "\"%s\" is taken as a fraction", texts[i]);
}
