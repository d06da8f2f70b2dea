#pragma once

/* One line on stderr, prefixed with "fakegpu: ". Keeps errno. */
__attribute__((format(printf, 1, 2))) void message(const char *format, ...);
