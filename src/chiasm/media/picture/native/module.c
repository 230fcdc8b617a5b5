/* Python's side of the JPEG decoder. Sizes are checked here; the interpreter's lock is released while it works. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "jpeg.h"

#define MAX_SIDE 65535 /* that a header can state */

static bool fits(const picture_part *part, long width, long height, const Py_buffer *target) {
    if (width < 1 || width > MAX_SIDE || height < 1 || height > MAX_SIDE) return false;
    if (part->left < 0 || part->top < 0 || part->width < 1 || part->height < 1) return false;
    if (part->width > width - part->left || part->height > height - part->top) return false;
    return target->len == 3 * part->width * part->height;
}

static PyObject *py_decode(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer source, target;
    long width, height;
    picture_part part;
    if (!PyArg_ParseTuple(
            args, "y*llllllw*", &source, &width, &height, &part.left, &part.top, &part.width, &part.height, &target))
        return NULL;
    const bool is_sound = fits(&part, width, height, &target);
    jpeg_result result = JPEG_OTHER;
    if (is_sound) {
        Py_BEGIN_ALLOW_THREADS
        result = jpeg_decode(source.buf, (size_t)source.len, width, height, &part, target.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&target);
    if (!is_sound) return PyErr_Format(PyExc_ValueError, "the part, the picture and the target do not fit each other");
    if (result == JPEG_NO_MEMORY) return PyErr_NoMemory();
    return PyBool_FromLong(result == JPEG_DONE);
}

static PyMethodDef methods[] = {
    {"decode", py_decode, METH_VARARGS, "decode(data, width, height, left, top, part_width, part_height, target)"},
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_jpeg", .m_doc = "JPEG, decoded in C.", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit__jpeg(void) { return PyModule_Create(&definition); }
