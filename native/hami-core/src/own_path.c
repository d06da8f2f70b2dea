#define _GNU_SOURCE
#include "own_path.h"

#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "elf_lookup.h"

struct found {
    const char *name;
};

static int is_self(struct dl_phdr_info *object, size_t bytes, void *data)
{
    (void)bytes;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC &&
            (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr) == elf_self()) {
            ((struct found *)data)->name = object->dlpi_name;
            return 1;
        }
    }
    return 0;
}

static const char *executed_as;

void own_file_executed_as(const char *path)
{
    executed_as = path;
}

bool own_file(char *path, size_t bytes)
{
    struct found found = {NULL};
    size_t length = 0;

    dl_iterate_phdr(is_self, &found);
    if (found.name && !found.name[0])
        found.name = executed_as;
    if (!found.name || !found.name[0])
        return false;
    if (found.name[0] != '/') {
        if (!getcwd(path, bytes))
            return false;
        length = strlen(path);
    }
    int added = snprintf(path + length, bytes - length, "%s%s", length ? "/" : "", found.name);
    return added >= 0 && (size_t)added < bytes - length;
}

bool own_directory(char *directory, size_t bytes)
{
    if (!own_file(directory, bytes))
        return false;
    char *slash = strrchr(directory, '/');
    if (!slash)
        return false;
    *slash = '\0';
    return true;
}
