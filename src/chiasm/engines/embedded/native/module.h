/* What the Python sides of decoder, tower and text encoder share. */
#ifndef CHIASM_MODULE_H
#define CHIASM_MODULE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

/* Of an array, from Python. */
typedef unsigned long long address;

static inline void *pointer(address a) { return (void *)(uintptr_t)a; }

/* A new reference, or NULL with an exception. */
PyObject *new_tower_type(void);
PyObject *new_text_encoder_type(void);

#endif
