/* How this library comes into programs. */
#ifndef PRELOAD_H
#define PRELOAD_H

/* What has programs of this container preload the file `library`: /etc/ld.so.preload if it is listed there and the C library reads
 * that, else LD_PRELOAD if this process has it there, else NULL. */
const char *preload_source(const char *library);

/* A line that says which programs of this container pass by, where the C library is one that reads no /etc/ld.so.preload. */
void preload_say_gap(const char *library);

#endif
