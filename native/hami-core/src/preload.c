#define _GNU_SOURCE
#include "preload.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "elf_lookup.h"
#include "file_status.h"
#include "message.h"

#define PRELOAD_FILE "/etc/ld.so.preload"

/* glibc's loader reads /etc/ld.so.preload, musl's does not. The symbol is one that glibc's loader has always exported; what musl
 * systems have to run programs of glibc lacks it. */
static bool reads_preload_file(void)
{
    return elf_next_symbol("__libc_stack_end") != NULL;
}

static bool same_file(const char *a, const char *b)
{
    struct stat one, other;
    return file_status(a, &one) && file_status(b, &other) && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

/* The words of a list that white space and colons divide. The list is changed. */
static bool lists(char *list, const char *library)
{
    char *rest;
    for (char *word = strtok_r(list, " \t\n:", &rest); word; word = strtok_r(NULL, " \t\n:", &rest))
        if (same_file(word, library))
            return true;
    return false;
}

/* As glibc reads it: from # to the end of the line is a comment. */
static void blank_comments(char *text)
{
    for (char *comment = strchr(text, '#'); comment; comment = strchr(comment, '#'))
        while (*comment && *comment != '\n')
            *comment++ = ' ';
}

static bool file_lists(const char *library)
{
    char text[4096];
    int file = open(PRELOAD_FILE, O_RDONLY | O_CLOEXEC);
    ssize_t length = file >= 0 ? read(file, text, sizeof(text) - 1) : -1;
    if (file >= 0)
        close(file);
    if (length <= 0)
        return false;
    text[length] = '\0';
    blank_comments(text);
    return lists(text, library);
}

static bool environment_lists(const char *library)
{
    const char *value = getenv("LD_PRELOAD");
    char *copy = value ? strdup(value) : NULL;
    bool listed = copy && lists(copy, library);
    free(copy);
    return listed;
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
