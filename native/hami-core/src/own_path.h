/* Where this library's own file lies. */
#ifndef OWN_PATH_H
#define OWN_PATH_H

#include <stdbool.h>
#include <stddef.h>

/* Absolute directory of the library's file, without a slash at its end. False: the loader has no name for it, or the path does not
 * fit. That the file is still there is not checked. */
bool own_directory(char *directory, size_t bytes);

/* The same with the file's name. */
bool own_file(char *path, size_t bytes);

/* The path of the library's file where it is the program itself, which has no name for the loader. */
void own_file_executed_as(const char *path);

#endif
