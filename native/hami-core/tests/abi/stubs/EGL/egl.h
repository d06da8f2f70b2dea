/* The types that cudaEGL.h takes from EGL. */
typedef int EGLint;
typedef void *EGLStreamKHR;
typedef void *EGLImageKHR;
typedef void *EGLSyncKHR;
