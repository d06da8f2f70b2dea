/* How this library comes into programs. */
#ifndef PRELOAD_H
#define PRELOAD_H

/* A line that says which programs of this container pass by, where the C library is one that reads no /etc/ld.so.preload. */
void preload_say_gap(const char *library);

#endif
