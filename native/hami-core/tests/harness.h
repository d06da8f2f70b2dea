/* A small test harness: each test runs in a process of its own, so that one that crashes, hangs or leaves state behind fails alone. */
#ifndef HARNESS_H
#define HARNESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct test {
    const char *file;
    const char *name;
    void (*run)(void);
    struct test *next;
};

void test_register(struct test *test);

#define TEST(name)                                                                                                                 \
    static void name(void);                                                                                                        \
    __attribute__((constructor)) static void register_##name(void)                                                                 \
    {                                                                                                                              \
        static struct test test = {__FILE__, #name, name, 0};                                                                      \
        test_register(&test);                                                                                                      \
    }                                                                                                                              \
    static void name(void)

_Noreturn void check_failed(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
void check_equal(const char *file, int line, const char *what, uint64_t got, uint64_t wanted);
void check_text(const char *file, int line, const char *what, const char *got, const char *wanted);
void check_has(const char *file, int line, const char *what, const char *got, const char *wanted);

/* Ends the test as skipped; says why. */
_Noreturn void skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define CHECK(condition) ((condition) ? (void)0 : check_failed(__FILE__, __LINE__, "%s", #condition))
#define CHECK_EQUAL(got, wanted) check_equal(__FILE__, __LINE__, #got, (uint64_t)(got), (uint64_t)(wanted))
#define CHECK_TEXT(got, wanted) check_text(__FILE__, __LINE__, #got, got, wanted)
/* The text contains another. */
#define CHECK_HAS(got, wanted) check_has(__FILE__, __LINE__, #got, got, wanted)

#endif
