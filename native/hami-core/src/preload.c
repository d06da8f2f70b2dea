#define _GNU_SOURCE
#include "preload.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "elf_lookup.h"
#include "file_status.h"
#include "limits.h"
#include "message.h"
#include "text.h"

#define PRELOAD_FILE "/etc/ld.so.preload"

/* glibc's loader reads /etc/ld.so.preload, musl's does not. The symbol is one that glibc's loader has always exported; what musl
 * systems have to run programs of glibc lacks it. */
static bool reads_preload_file(void)
{
    return elf_next_symbol("__libc_stack_end") != NULL;
}

static bool same_file(struct span path, const char *library)
{
    char one[PATH_BYTES];
    struct stat a, b;
    return span_copy(path, one, sizeof(one)) && file_status(one, &a) && file_status(library, &b) && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

static bool divides(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == ':';
}

/* A list that white space and colons divide. */
static bool lists(struct span list, const char *library)
{
    while (list.length > 0) {
        size_t length = 0;
        while (length < list.length && !divides(list.start[length]))
            length++;
        if (length > 0 && same_file((struct span){list.start, length}, library))
            return true;
        size_t used = length < list.length ? length + 1 : length;
        list = (struct span){list.start + used, list.length - used};
    }
    return false;
}

/* As glibc reads it: from # to the end of the line is a comment. */
static void blank_comments(char *text, size_t length)
{
    bool comment = false;
    for (size_t i = 0; i < length; i++) {
        comment = text[i] != '\n' && (comment || text[i] == '#');
        if (comment)
            text[i] = ' ';
    }
}

static bool file_lists(const char *library)
{
    char text[4096];
    int file = open(PRELOAD_FILE, O_RDONLY | O_CLOEXEC);
    ssize_t length = file >= 0 ? read(file, text, sizeof(text)) : -1;
    if (file >= 0)
        close(file);
    if (length <= 0)
        return false;
    blank_comments(text, (size_t)length);
    return lists((struct span){text, (size_t)length}, library);
}

static bool environment_lists(const char *library)
{
    const char *value = getenv("LD_PRELOAD");
    return value && lists(span_of(value), library);
}

const char *preload_source(const char *library)
{
    if (reads_preload_file() && file_lists(library))
        return PRELOAD_FILE;
    return environment_lists(library) ? "LD_PRELOAD" : NULL;
}

void preload_say_gap(const char *library)
{
    if (!reads_preload_file())
        message(MESSAGE_WARNING,
                "the C library of this program reads no " PRELOAD_FILE ": programs of this container that are started without "
                "LD_PRELOAD=%.256s, with a cleared environment or setuid, are not held to its GPU memory limit",
                library);
}
