/* JPEG on Python's side: decoded and resized in one go, so that no more than a few rows of its pixels are ever there. */
#include "module.h"

#include "jpeg_rows.h"

static void next_rows(void *state, long y, int count, uint8_t *const *rows) { jpeg_rows_read(state, y, count, rows); }

/* What is wanted of the resize of a stored picture, and where it goes. */
typedef struct {
    resized_side across, down;
    long width, height;
    int filter;
    const passes *passes;
    uint8_t *out;
} task;

/* Whether the file is decoded here, and was good; `seconds` are the decoder's. */
static bool resize_jpeg(const Py_buffer *file, const task *t, bool *has_memory, double *seconds) {
    long first, end;
    coefficients_span(t->filter, t->across.length, t->across.size, t->across.first, t->width, &first, &end);
    jpeg_rows *decoded =
        jpeg_rows_open(file->buf, (size_t)file->len, t->across.length, t->down.length, first, end);
    if (!decoded) return false;
    const picture from = {
        .width = jpeg_rows_width(decoded),
        .height = t->down.length,
        .channels = 3,
        .first = jpeg_rows_first(decoded),
        .source = next_rows,
        .state = decoded,
    };
    rows_layout rows = {t->out, t->width};
    *has_memory = resize_part(&from, &t->across, &t->down, t->width, t->height, t->filter, t->passes, rows_sink, &rows);
    return jpeg_rows_close(decoded, seconds);
}

static bool can_be_streamed(const task *t) {
    return t->across.length != t->across.size && t->down.length != t->down.size && !is_down_first(&t->across, &t->down);
}

PyObject *py_resize_jpeg(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer file, target;
    task t;
    const char *name;
    if (!PyArg_ParseTuple(
            args, "y*(ll)(ll)(llll)iw*s", &file, &t.across.length, &t.down.length, &t.across.size, &t.down.size,
            &t.across.first, &t.down.first, &t.width, &t.height, &t.filter, &target, &name))
        return NULL;
    t.passes = passes_named(name);
    t.out = target.buf;
    const char *problem = NULL;
    if (!is_side(t.across.length) || !is_side(t.down.length)) problem = "sides must be 1 to 1000000";
    else if (!t.passes) problem = "no such passes";
    else if (t.filter < LANCZOS || t.filter > BICUBIC) problem = "no such filter";
    else if (!fits(&t.across, t.width) || !fits(&t.down, t.height)) problem = "what is wanted lies outside";
    else if (target.len != t.width * t.height * 3) problem = "the target does not fit";
    bool is_made = false, has_memory = true;
    double seconds = 0;
    if (!problem && can_be_streamed(&t)) {
        Py_BEGIN_ALLOW_THREADS
        is_made = resize_jpeg(&file, &t, &has_memory, &seconds);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&file);
    PyBuffer_Release(&target);
    if (problem) return PyErr_Format(PyExc_ValueError, "%s", problem);
    if (!has_memory) return PyErr_NoMemory();
    if (!is_made) Py_RETURN_NONE;
    return PyFloat_FromDouble(seconds);
}

PyObject *py_jpeg_library(PyObject *module, PyObject *args) {
    (void)module;
    const char *path;
    if (!PyArg_ParseTuple(args, "s", &path)) return NULL;
    return PyBool_FromLong(jpeg_rows_library(path));
}
