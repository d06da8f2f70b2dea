/* A library with nothing in it, which the loader loads as it loads any. */
const char empty[] = "";
