#define _GNU_SOURCE
#include "message.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "signals.h"

static int log_level(void)
{
    const char *value = getenv("LIBCUDA_LOG_LEVEL");
    return value && *value ? (int)strtoull(value, NULL, 10) : MESSAGE_WARNING;
}

/* A closed pipe must not end the program: SIGPIPE is held back around the write and taken away if the write raised it. */
static void write_quietly(const char *line, size_t length)
{
    struct pollfd output = {.fd = STDERR_FILENO, .events = POLLOUT};
    const uint64_t pipe_only = signal_bit(SIGPIPE);
    uint64_t before, pending = 0;
    const struct timespec now = {0, 0};

    if (poll(&output, 1, 0) != 1 || !(output.revents & POLLOUT))
        return;
    syscall(SYS_rt_sigpending, &pending, SIGNALS_BYTES);
    signals_mask(SIG_BLOCK, &pipe_only, &before);
    if (write(STDERR_FILENO, line, length) < 0 && errno == EPIPE && !(pending & pipe_only))
        while (syscall(SYS_rt_sigtimedwait, &pipe_only, NULL, &now, SIGNALS_BYTES) < 0 && errno == EINTR)
            ;
    signals_mask(SIG_SETMASK, &before, NULL);
}

void message(enum message_level level, const char *format, ...)
{
    static const char prefix[] = "libvgpu: ";
    char line[MESSAGE_BYTES];
    int saved = errno;
    size_t length = sizeof(prefix) - 1;
    va_list arguments;

    if (level == MESSAGE_ERROR || log_level() >= (int)level) {
        memcpy(line, prefix, sizeof(prefix));
        va_start(arguments, format);
        vsnprintf(line + length, sizeof(line) - length - 1, format, arguments);
        va_end(arguments);
        length = strlen(line);
        line[length++] = '\n';
        write_quietly(line, length);
    }
    errno = saved;
}

void text_append(char *buffer, size_t bytes, const char *format, ...)
{
    size_t used = strlen(buffer);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(buffer + used, bytes - used, format, arguments);
    va_end(arguments);
}
