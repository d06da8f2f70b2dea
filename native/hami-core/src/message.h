/* Lines on stderr, for people. Nothing is printed in normal use. */
#ifndef MESSAGE_H
#define MESSAGE_H

#include <stddef.h>

/* HAMi's LIBCUDA_LOG_LEVEL: errors always, warnings from 2 (the default) up. */
enum message_level { MESSAGE_ERROR = 0, MESSAGE_WARNING = 2 };

enum { MESSAGE_BYTES = 1024 };

/* One line, `libvgpu: ` before it, in one write. Does not touch errno or signals, does not wait for a full pipe. */
void message(enum message_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Appends to the text in buffer, cutting what does not fit. */
void text_append(char *buffer, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
