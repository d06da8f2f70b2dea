/* Namespaces that the program made by dlmopen. */
#ifndef DLMOPEN_H
#define DLMOPEN_H

/* The dlsym of this library's copy in the namespace of a library that dlmopen opened: it knows that namespace's driver. NULL for a
 * library of this copy's own namespace. */
void *dlmopen_dlsym_of(void *handle);

#endif
