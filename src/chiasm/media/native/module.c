/* Python's side of the kernels. Arrays come as contiguous buffers whose sizes are checked here; the interpreter's lock is
 * released while anything is computed. */
#include "module.h"

#include "unfilter.h"

#include <stdlib.h>
#include <string.h>

bool is_side(long length) { return length >= 1 && length <= MAX_SIDE; }

static const char *problem_of(const picture *from, const Py_buffer *source, long width, long height) {
    if (!is_side(from->width) || !is_side(from->height) || !is_side(width) || !is_side(height))
        return "sides must be 1 to 1000000";
    if (from->channels != 3 && from->channels != 4) return "channels must be 3 or 4";
    if (source->len != from->width * from->height * from->channels) return "the source is not as large as stated";
    return NULL;
}

const passes *passes_named(const char *name) {
    const passes *p = passes_number(0);
    if (!strcmp(name, "auto")) return p;
    for (int number = 1; p && strcmp(name, p->name); number++) p = passes_number(number);
    return p;
}

static PyObject *done(Py_buffer *source, Py_buffer *target, const char *problem, bool has_memory) {
    PyBuffer_Release(source);
    PyBuffer_Release(target);
    if (problem) return PyErr_Format(PyExc_ValueError, "%s", problem);
    if (!has_memory) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *py_resize(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer source, target;
    picture from = {0};
    long width, height, patch, merge;
    int filter;
    const char *name;
    if (!PyArg_ParseTuple(
            args, "y*llilliw*lls", &source, &from.width, &from.height, &from.channels, &width, &height, &filter,
            &target, &patch, &merge, &name))
        return NULL;
    from.pixels = source.buf;
    const char *problem = problem_of(&from, &source, width, height);
    const passes *p = passes_named(name);
    if (!problem && !p) problem = "no such passes";
    if (!problem && (filter < LANCZOS || filter > BICUBIC)) problem = "no such filter";
    const bool is_patched = patch > 0;
    if (!problem && is_patched) {
        if (patch > MAX_SIDE || merge < 1 || merge > MAX_SIDE || width % (patch * merge) || height % (patch * merge))
            problem = "sides must be whole merged patches";
    }
    const long outer = is_patched ? target.len / 3 / (problem ? 1 : width * height) : 1;
    if (!problem && (outer < 1 || target.len != outer * width * height * 3)) problem = "the target does not fit";
    bool has_memory = true;
    if (!problem) {
        rows_layout rows = {target.buf, width};
        patches_layout patches = {target.buf, is_patched ? width / patch : 0, patch, merge, outer * patch * patch, p};
        Py_BEGIN_ALLOW_THREADS
        has_memory = is_patched ? resize(&from, width, height, filter, p, patches_sink, &patches)
                                : resize(&from, width, height, filter, p, rows_sink, &rows);
        Py_END_ALLOW_THREADS
    }
    return done(&source, &target, problem, has_memory);
}

/* A side that keeps its length has no weights, and is wanted whole. */
bool fits(const resized_side *side, long wanted) {
    if (!is_side(side->size) || !is_side(wanted) || side->first < 0 || wanted > side->size - side->first) return false;
    return side->length != side->size || wanted == side->size;
}

static PyObject *py_resize_part(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer source, target;
    picture from = {.channels = 3};
    resized_side across, down;
    long width, height; /* that are wanted */
    int filter;
    const char *name;
    if (!PyArg_ParseTuple(
            args, "y*ll(ll)(llll)iw*s", &source, &from.width, &from.height, &across.size, &down.size, &across.first,
            &down.first, &width, &height, &filter, &target, &name))
        return NULL;
    from.pixels = source.buf;
    across.length = from.width;
    down.length = from.height;
    const char *problem = problem_of(&from, &source, width, height);
    const passes *p = passes_named(name);
    if (!problem && !p) problem = "no such passes";
    if (!problem && (filter < LANCZOS || filter > BICUBIC)) problem = "no such filter";
    if (!problem && (!fits(&across, width) || !fits(&down, height))) problem = "what is wanted lies outside";
    if (!problem && target.len != width * height * 3) problem = "the target does not fit";
    bool has_memory = true;
    if (!problem) {
        rows_layout rows = {target.buf, width};
        Py_BEGIN_ALLOW_THREADS
        has_memory = resize_part(&from, &across, &down, width, height, filter, p, rows_sink, &rows);
        Py_END_ALLOW_THREADS
    }
    return done(&source, &target, problem, has_memory);
}

static PyObject *py_look_up(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer source, table, target;
    long count, plane, frames;
    const char *name;
    if (!PyArg_ParseTuple(args, "y*y*lllw*s", &source, &table, &count, &plane, &frames, &target, &name)) return NULL;
    const passes *p = passes_named(name);
    const char *problem = NULL;
    if (!p) problem = "no such passes";
    else if (!is_side(count) || !is_side(plane) || !is_side(frames)) problem = "sizes must be 1 to 1000000";
    else if (table.len != 3 * 256 * (Py_ssize_t)sizeof(float)) problem = "the table does not have 3 x 256 floats";
    else if (source.len != 3 * count * plane) problem = "the source is not as large as stated";
    else if (target.len / frames != source.len * (Py_ssize_t)sizeof(float) || target.len % frames)
        problem = "the target does not fit";
    if (!problem) {
        Py_BEGIN_ALLOW_THREADS
        p->look_up(source.buf, table.buf, count, plane, frames, target.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&table);
    return done(&source, &target, problem, true);
}

static PyObject *py_turn(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer source, target;
    picture from = {0};
    int orientation;
    if (!PyArg_ParseTuple(args, "y*lliiw*", &source, &from.width, &from.height, &from.channels, &orientation, &target))
        return NULL;
    from.pixels = source.buf;
    const char *problem = problem_of(&from, &source, 1, 1);
    if (!problem && (orientation < 2 || orientation > 8)) problem = "orientation must be 2 to 8";
    if (!problem && target.len != from.width * from.height * 3) problem = "the target does not fit";
    if (!problem) {
        Py_BEGIN_ALLOW_THREADS
        turn(&from, orientation, target.buf);
        Py_END_ALLOW_THREADS
    }
    return done(&source, &target, problem, true);
}

static PyObject *py_unfilter(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer source, target;
    long width, height;
    int channels;
    if (!PyArg_ParseTuple(args, "y*lliw*", &source, &width, &height, &channels, &target)) return NULL;
    const char *problem = NULL;
    if (!is_side(width) || !is_side(height)) problem = "sides must be 1 to 1000000";
    else if (channels != 3 && channels != 4) problem = "channels must be 3 or 4";
    else if (source.len != height * (1 + width * channels)) problem = "the source is not as large as stated";
    else if (target.len != height * width * 3) problem = "the target does not fit";
    uint8_t *scratch = problem ? NULL : malloc(2 * (size_t)width * (size_t)channels);
    if (scratch) {
        Py_BEGIN_ALLOW_THREADS
        problem = unfilter(source.buf, width, height, channels, scratch, target.buf);
        Py_END_ALLOW_THREADS
    }
    const bool has_memory = problem || scratch;
    free(scratch);
    return done(&source, &target, problem, has_memory);
}

static PyObject *py_names(PyObject *module, PyObject *nothing) {
    (void)module, (void)nothing;
    PyObject *names = PyList_New(0);
    for (int number = 0; names && passes_number(number); number++) {
        PyObject *name = PyUnicode_FromString(passes_number(number)->name);
        if (!name || PyList_Append(names, name)) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyMethodDef methods[] = {
    {"resize", py_resize, METH_VARARGS,
     "resize(source, width, height, channels, out_width, out_height, filter, target, patch, merge, passes)"},
    {"resize_part", py_resize_part, METH_VARARGS,
     "resize_part(source, width, height, (out_width, out_height), (left, top, width, height), filter, target, passes)"},
    {"resize_jpeg", py_resize_jpeg, METH_VARARGS,
     "resize_jpeg(file, (width, height), (out_width, out_height), (left, top, width, height), filter, target, passes)"},
    {"jpeg_library", py_jpeg_library, METH_VARARGS, "jpeg_library(path)"},
    {"look_up", py_look_up, METH_VARARGS, "look_up(source, table, count, plane, frames, target, passes)"},
    {"turn", py_turn, METH_VARARGS, "turn(source, width, height, channels, orientation, target)"},
    {"unfilter", py_unfilter, METH_VARARGS, "unfilter(source, width, height, channels, target)"},
    {"names", py_names, METH_NOARGS, "Names of the passes that this machine can do, the best first."},
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_doc = "Pixels, computed in C.", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&definition); }
