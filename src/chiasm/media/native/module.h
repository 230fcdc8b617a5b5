/* What the files on Python's side share. */
#ifndef CHIASM_MEDIA_MODULE_H
#define CHIASM_MEDIA_MODULE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "layout.h"

#define MAX_SIDE 1000000 /* products of two stay far from the limits of `long` */

bool is_side(long length);

/* NULL when there are none of that name. */
const passes *passes_named(const char *name);

/* Whether so much can be wanted of a side. */
bool fits(const resized_side *side, long wanted);

PyObject *py_jpeg_library(PyObject *module, PyObject *args);
PyObject *py_resize_jpeg(PyObject *module, PyObject *args);

#endif
