#include <string.h>

#include "../src/limits.h"
#include "harness.h"

static const char uid[] = "0c9e7a52-6d2f-4b7e-9a53-b7a35d0c1f11";

static struct limit_files parsed(const char *request, const char *kai)
{
    struct limit_files files;
    char reason[REASON_BYTES];
    struct span kai_text = {kai, kai ? strlen(kai) : 0};
    if (!limit_files_parse(span_of(request), span_of(uid), kai ? &kai_text : NULL, &files, reason))
        check_failed(__FILE__, __LINE__, "%s", reason);
    return files;
}

static uint64_t limit(const char *request, const char *kai, struct card card)
{
    struct limit_files files = parsed(request, kai);
    return limit_on_card(&files, card);
}

static void refused(const char *request, const char *wanted)
{
    struct limit_files files;
    char reason[REASON_BYTES];
    if (limit_files_parse(span_of(request), span_of(uid), NULL, &files, reason))
        check_failed(__FILE__, __LINE__, "\"%s\" is taken", request);
    CHECK_HAS(reason, wanted);
}

static const struct card t4 = {.nvml_total = 15360 * MIB, .cuda_total = 14930 * MIB};

#define MEMORY "container=main\nmemory=4096m\n"
#define HALF "container=main\nfraction=0.5\n"

TEST(without_kais_file_the_limit_is_the_request)
{
    CHECK_EQUAL(limit(MEMORY, NULL, t4), 4096 * MIB);
    CHECK_EQUAL(limit(HALF, NULL, t4), 7680 * MIB);
    CHECK_EQUAL(limit("container=main\nfraction=0.333\n", NULL, t4), 15360 * MIB / 1000 * 333 + 15360 * MIB % 1000 * 333 / 1000);
    CHECK_EQUAL(limit("container=main\nmemory=none\n", NULL, t4), LIMIT_NONE);
}

TEST(kais_file_counts_up_to_what_the_request_can_mean)
{
    CHECK_EQUAL(limit(MEMORY, "4147m", t4), UINT64_C(4348444672));
    CHECK_EQUAL(limit(HALF, "7680m", t4), 7680 * MIB);
    CHECK_EQUAL(limit(MEMORY, "2000m", t4), 2000 * MIB);
    CHECK_EQUAL(limit(MEMORY, "15360m", t4), 4147 * MIB);
    CHECK_EQUAL(limit(HALF, "15360m", t4), 7680 * MIB);
    CHECK_EQUAL(limit("container=main\nfraction=0.335\n", "5222m", t4), 5222 * MIB);
    /* A label in bytes makes KAI's figure 2^20 too large. */
    CHECK_EQUAL(limit(MEMORY, "4348654387m", t4), 4147 * MIB);
    /* Portion 0.00: KAI writes nothing; what is there all the same may not exceed the request. */
    CHECK_EQUAL(limit("container=main\nfraction=0.001\n", "15360m", t4), 15360 * MIB / 1000);
    CHECK_EQUAL(limit("container=main\nmemory=none\n", "4147m", t4), LIMIT_NONE);
}

TEST(at_most_caps_both)
{
    CHECK_EQUAL(limit(HALF "at-most=3840m\n", NULL, t4), 3840 * MIB);
    CHECK_EQUAL(limit(HALF "at-most=3840m\n", "7680m", t4), 3840 * MIB);
    CHECK_EQUAL(limit(HALF "at-most=9000m\n", "7680m", t4), 7680 * MIB);
}

/* KAI's label is NVML's figure and CUDA's is smaller: whatever the label of such a card is, KAI's own limit must pass. */
TEST(without_nvml_kais_limit_is_never_cut)
{
    static const uint64_t cuda[] = {3900, 7900, 14930, 22500, 40536, 81050, 143167};
    static const uint64_t requests[] = {1, 100, 900, 1020, 1071, 2048, 3333, 4096, 10240, 60000, 140000};
    for (unsigned c = 0; c < sizeof(cuda) / sizeof(cuda[0]); c++) {
        for (uint64_t label = cuda[c]; label <= cuda[c] + cuda[c] / 16 + 256; label += 7) {
            for (unsigned r = 0; r < sizeof(requests) / sizeof(requests[0]); r++) {
                uint64_t kai = kai_limit_mib(kai_portion_of_memory(requests[r], label), label);
                struct limit_files files = parsed(MEMORY, "1m");
                files.request.memory_mib = requests[r];
                files.kai_bytes = kai * MIB;
                CHECK_EQUAL(limit_on_card(&files, (struct card){0, cuda[c] * MIB}), kai * MIB);
            }
            struct limit_files half = parsed(HALF, "1m");
            half.kai_bytes = kai_limit_mib(50, label) * MIB;
            CHECK_EQUAL(limit_on_card(&half, (struct card){0, cuda[c] * MIB}), half.kai_bytes);
        }
    }
    /* And it still bounds. */
    CHECK(limit(MEMORY, "15360m", (struct card){0, 14930 * MIB}) < 4400 * MIB);
    CHECK_EQUAL(limit(HALF, NULL, (struct card){0, 14930 * MIB}), 7465 * MIB);
}

TEST(requests_are_read_whole)
{
    struct limit_files files = parsed("container=main\r\n\nmemory=4096m\ndevices=2\ncores=30\npriority=0\nregion=hostPath\nfuture=x\n", NULL);
    CHECK_TEXT(files.request.container, "main");
    CHECK_EQUAL(files.request.memory_mib, 4096);
    CHECK_EQUAL(files.request.devices, 2);
    CHECK_EQUAL(files.request.cores, 30);
    CHECK_EQUAL(files.request.priority, 0);
    CHECK(files.request.region_is_mounted);
    CHECK_TEXT(files.request.unknown_key, "future");
    CHECK_TEXT(files.uid, uid);
    files = parsed("container=main\nmemory=1m", NULL);
    CHECK_EQUAL(files.request.cores, 100);
    CHECK_EQUAL(files.request.devices, 1);
    CHECK_EQUAL(files.request.priority, 1);
    CHECK(!files.request.region_is_mounted);
    CHECK(!parsed("container=main\nmemory=1m\nregion=emptyDir\n", NULL).request.region_is_mounted);
}

TEST(requests_that_are_not_valid_say_what_is_accepted)
{
    refused("", "container is missing");
    refused("memory=1m\n", "container is missing");
    refused("container=main\n", "neither memory nor fraction");
    refused(MEMORY "fraction=0.5\n", "memory and fraction are both given");
    refused(MEMORY "memory=1m\n", "memory is given twice");
    refused("container=../x\nmemory=1m\n", "container=../x: accepted is a container's name");
    refused("container=\nmemory=1m\n", "container=: accepted");
    refused("container=main\nmemory=4096\n", "memory=4096: accepted is MiB with the suffix m");
    refused("container=main\nmemory=0m\n", "memory=0m: accepted");
    refused("container=main\nmemory=-1m\n", "memory=-1m: accepted");
    refused("container=main\nmemory=99999999999999999m\n", "accepted");
    refused("container=main\nfraction=1.5\n", "fraction=1.5: accepted is a decimal above 0 and at most 1");
    refused("container=main\nfraction=0\n", "fraction=0: accepted");
    refused(MEMORY "cores=0\n", "cores=0: accepted is percent, 1 to 100");
    refused(MEMORY "cores=101\n", "cores=101: accepted");
    refused(MEMORY "priority=2\n", "priority=2: accepted is 0 or 1");
    refused(MEMORY "devices=0\n", "devices=0: accepted");
    refused(MEMORY "at-most=1g\n", "at-most=1g: accepted");
    refused(MEMORY "nonsense\n", "line \"nonsense\": accepted is key=value");
}

TEST(a_uid_that_is_not_one_and_a_kai_file_that_limits_nothing_are_refused)
{
    struct limit_files files;
    char reason[REASON_BYTES];
    static const char *const uids[] = {"", "\n", "../..", "a/b", "a b"};
    static const char *const kai[] = {"", "0m", "abc", "4Gi", "-1"};

    for (unsigned i = 0; i < sizeof(uids) / sizeof(uids[0]); i++)
        CHECK(!limit_files_parse(span_of(MEMORY), span_of(uids[i]), NULL, &files, reason));
    for (unsigned i = 0; i < sizeof(kai) / sizeof(kai[0]); i++) {
        struct span text = span_of(kai[i]);
        CHECK(!limit_files_parse(span_of(MEMORY), span_of(uid), &text, &files, reason));
        CHECK_HAS(reason, "CUDA_DEVICE_MEMORY_LIMIT");
    }
}
