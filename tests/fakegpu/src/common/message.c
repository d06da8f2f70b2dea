#include "message.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

void message(const char *format, ...) {
    int saved = errno;
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length > 0) {
        dprintf(STDERR_FILENO, "fakegpu: %s\n", line);
    }
    errno = saved;
}
