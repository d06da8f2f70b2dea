/* What each program of facts prints. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define SIZE(type) printf("size of " #type " %zu\n", sizeof(type));
#define AT(type, field) printf(#type "." #field " at %zu\n", offsetof(type, field));
#define VALUE(name) printf(#name " %lld\n", (long long)(name));
