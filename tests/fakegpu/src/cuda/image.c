#include "image.h"

#include <ctype.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CUresult add(struct image *image, const char *name, size_t length, bool variable, size_t bytes) {
    struct image_symbol *grown = realloc(image->symbol, (image->count + 1) * sizeof *grown);
    if (grown == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    image->symbol = grown;
    struct image_symbol *symbol = &grown[image->count++];
    *symbol = (struct image_symbol){.variable = variable, .bytes = bytes};
    snprintf(symbol->name, sizeof symbol->name, "%.*s", (int)length, name);
    return CUDA_SUCCESS;
}

static size_t name_length(const char *text) {
    size_t length = 0;
    while (isalnum((unsigned char)text[length]) || text[length] == '_' || text[length] == '$') {
        length++;
    }
    return length;
}

/* Bytes of one element of a PTX type such as .f32, .b8 or .u64. */
static size_t type_bytes(const char *type) {
    size_t digits = strcspn(type, "0123456789");
    unsigned long bits = digits <= 2 ? strtoul(type + digits, NULL, 10) : 0;
    return bits >= 8 && bits <= 128 ? bits / 8 : 4;
}

/* ".global .align 4 .b8 table[1024] = {…};" or ".global .u32 counter;" */
static CUresult read_variable(struct image *image, const char *text) {
    size_t element = 4;
    for (;;) {
        text += strspn(text, " \t\r\n");
        if (*text != '.') {
            break;
        }
        text++;
        if (strncmp(text, "align", 5) == 0) {
            text += 5;
            text += strspn(text, " \t");
            text += strspn(text, "0123456789");
            continue;
        }
        if (strchr("bsuf", *text) != NULL && isdigit((unsigned char)text[1])) {
            element = type_bytes(text);
        }
        text += name_length(text);
    }
    size_t length = name_length(text), count = 1;
    const char *rest = text + length;
    while (*rest == '[') {
        count *= strtoul(rest + 1, NULL, 10);
        rest += strcspn(rest, "]") + 1;
    }
    return length == 0 ? CUDA_ERROR_INVALID_PTX : add(image, text, length, true, element * count);
}

static CUresult read_ptx(const char *text, struct image *image) {
    image->bytes = strlen(text);
    CUresult result = CUDA_SUCCESS;
    for (const char *at = text; result == CUDA_SUCCESS && (at = strchr(at, '.')) != NULL; at++) {
        bool starts = at == text || isspace((unsigned char)at[-1]);
        if (starts && strncmp(at, ".entry", 6) == 0 && isspace((unsigned char)at[6])) {
            const char *name = at + 6 + strspn(at + 6, " \t\r\n");
            result = add(image, name, name_length(name), false, 0);
        } else if (starts && strncmp(at, ".global", 7) == 0 && isspace((unsigned char)at[7])) {
            result = read_variable(image, at + 7);
        }
    }
    return result;
}

/* Kernels are the sections ".text.NAME", variables the objects of the symbol table. */
static CUresult read_elf(const unsigned char *file, struct image *image) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)file;
    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != EM_CUDA ||
        header->e_shentsize != sizeof(Elf64_Shdr)) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    const Elf64_Shdr *section = (const Elf64_Shdr *)(file + header->e_shoff);
    const char *names = (const char *)file + section[header->e_shstrndx].sh_offset;
    image->bytes = header->e_shoff + (size_t)header->e_shnum * sizeof *section;
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < header->e_shnum && result == CUDA_SUCCESS; i++) {
        const char *name = names + section[i].sh_name;
        size_t end = section[i].sh_type == SHT_NOBITS ? 0 : section[i].sh_offset + section[i].sh_size;
        image->bytes = end > image->bytes ? end : image->bytes;
        if (strncmp(name, ".text.", 6) == 0) {
            result = add(image, name + 6, strlen(name + 6), false, 0);
        }
        if (section[i].sh_type != SHT_SYMTAB) {
            continue;
        }
        const Elf64_Sym *symbol = (const Elf64_Sym *)(file + section[i].sh_offset);
        const char *strings = (const char *)file + section[section[i].sh_link].sh_offset;
        for (size_t j = 0; j < section[i].sh_size / sizeof *symbol && result == CUDA_SUCCESS; j++) {
            if (ELF64_ST_TYPE(symbol[j].st_info) == STT_OBJECT && ELF64_ST_BIND(symbol[j].st_info) == STB_GLOBAL) {
                const char *variable = strings + symbol[j].st_name;
                result = add(image, variable, strlen(variable), true, symbol[j].st_size);
            }
        }
    }
    return result;
}

CUresult image_read(const void *data, struct image *image) {
    *image = (struct image){.bytes = 0};
    CUresult result = CUDA_ERROR_INVALID_IMAGE;
    if (memcmp(data, ELFMAG, SELFMAG) == 0) {
        result = read_elf(data, image);
    } else {
        const char *text = data;
        text += strspn(text, " \t\r\n");
        if (strncmp(text, "//", 2) == 0 || *text == '.') {
            result = strstr(text, ".version") != NULL ? read_ptx(text, image) : CUDA_ERROR_INVALID_PTX;
        }
    }
    if (result != CUDA_SUCCESS) {
        image_free(image);
    }
    return result;
}

void image_free(struct image *image) {
    free(image->symbol);
    *image = (struct image){.bytes = 0};
}
