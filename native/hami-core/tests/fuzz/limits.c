/* The limit files' parsers: three texts, divided by NUL. Whatever they hold, a limit is never 0, which would be none. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/limits.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct card cards[] = {{UINT64_C(15360) << 20, UINT64_C(14930) << 20}, {0, UINT64_C(14930) << 20}, {0, 1}, {1, 1}};
    struct span rest = {(const char *)data, size};
    struct span request = span_cut(&rest, '\0'), uid = span_cut(&rest, '\0');
    struct limit_files files;
    char reason[REASON_BYTES] = "";

    if (!limit_files_parse(request, uid, rest.length ? &rest : NULL, &files, reason)) {
        if (!reason[0] || strlen(reason) >= REASON_BYTES)
            abort();
        return 0;
    }
    if (strchr(files.request.container, '/') || strchr(files.uid, '/') || !files.uid[0])
        abort();
    for (unsigned i = 0; i < sizeof(cards) / sizeof(cards[0]); i++)
        if (limit_on_card(&files, cards[i]) == 0)
            abort();
    return 0;
}
