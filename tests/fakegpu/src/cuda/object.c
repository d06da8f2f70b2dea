#include "object.h"

#include "driver.h"

#include <stdlib.h>
#include <string.h>

static struct object *spare[OBJECT_TYPES];

void *object_new(enum object_type type, size_t bytes, struct CUctx_st *context, void (*destroy)(void *object)) {
    struct object *object = spare[type];
    if (object != NULL) {
        spare[type] = object->next;
    } else if ((object = malloc(bytes)) == NULL) {
        return NULL;
    }
    memset(object, 0, bytes);
    object->type = type;
    object->context = context;
    object->destroy = destroy;
    if (context != NULL) {
        object->next = context->objects;
        object->link = &context->objects;
        if (object->next != NULL) {
            object->next->link = &object->next;
        }
        context->objects = object;
    }
    return object;
}

bool object_is(const void *handle, enum object_type type) {
    return handle != NULL && ((const struct object *)handle)->type == type;
}

void object_delete(void *handle) {
    struct object *object = handle;
    if (object->context != NULL) {
        *object->link = object->next;
        if (object->next != NULL) {
            object->next->link = object->link;
        }
    }
    object->next = spare[object->type];
    spare[object->type] = object;
    object->type = OBJECT_NONE;
}

void objects_end(struct CUctx_st *context) {
    while (context->objects != NULL) {
        context->objects->destroy(context->objects);
    }
}
