/* The types that cudaGL.h takes from OpenGL. */
typedef unsigned int GLenum;
typedef unsigned int GLuint;
