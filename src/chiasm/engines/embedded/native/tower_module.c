/* Python's side of the vision tower, as module.c is the decoder's: `NativeTower`. */
#include "owner.h"

#include <string.h>

#include "tower.h"

static void release(void *owned) { tower_free(owned); }

static const ownership how = {"tower", release};

static bool find_activation(const char *name, epilogue *activation) {
    const char *names[] = {[SWIGLU] = "swiglu", [GELU] = "gelu", [GELU_TANH] = "gelu_tanh", [GELU_SIGMOID] = "gelu_sigmoid"};
    for (int i = SWIGLU; i <= GELU_SIGMOID; i++)
        if (!strcmp(name, names[i])) {
            *activation = i;
            return true;
        }
    return false;
}

static const char *problem_of(const tower_shape *s, int threads) {
    if (s->num_layers < 1 || s->hidden < 1 || s->intermediate < 1 || s->heads < 1 || s->out_hidden < 1)
        return "sizes must be positive";
    if (s->channels < 1 || s->frames < 1 || s->patch_pixels < 1 || s->merge < 1) return "sizes must be positive";
    if (s->head_dim < 4 || s->head_dim % 4) return "heads must be a multiple of 4";
    if (s->num_levels < -1 || s->position_side < 0) return "levels and positions must not be negative";
    if (threads < 1 || threads > 256) return "threads must be 1 to 256";
    return NULL;
}

static PyObject *object_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    (void)named;
    const char *name, *activation;
    int threads, is_bf16, is_rms;
    tower_shape s = {0};
    if (!PyArg_ParseTuple(
            args, "sillllllllllllppsffd", &name, &threads, &s.num_layers, &s.hidden, &s.heads, &s.head_dim, &s.intermediate,
            &s.channels, &s.frames, &s.patch_pixels, &s.merge, &s.out_hidden, &s.num_levels, &s.position_side, &is_bf16,
            &is_rms, &activation, &s.eps, &s.scale, &s.alone_products))
        return NULL;
    s.is_bf16 = is_bf16;
    s.is_rms = is_rms;
    const char *problem = problem_of(&s, threads);
    if (!problem && !find_activation(activation, &s.activation)) problem = "no such activation";
    if (problem) return PyErr_Format(PyExc_ValueError, "%s", problem);
    const kernels *k = find_kernels(name, s.head_dim);
    if (!k) return PyErr_Format(PyExc_ValueError, "no kernels '%s' for heads of %ld", name, s.head_dim);
    return owner_new(type, &how, tower_new(k, &s, threads), k);
}

static PyObject *py_set_embedding(PyObject *self, PyObject *args) {
    address weights, bias, positions;
    if (!PyArg_ParseTuple(args, "KKK", &weights, &bias, &positions)) return NULL;
    tower *t = owner_begin(self);
    if (!t) return NULL;
    bool is_done;
    Py_BEGIN_ALLOW_THREADS
    is_done = tower_set_embedding(t, pointer(weights), pointer(bias), pointer(positions));
    Py_END_ALLOW_THREADS
    return owner_end(self, is_done);
}

static PyObject *py_set_layer(PyObject *self, PyObject *args) {
    long number;
    int is_windowed;
    address a[12];
    if (!PyArg_ParseTuple(
            args, "lpKKKKKKKKKKKK", &number, &is_windowed, a, a + 1, a + 2, a + 3, a + 4, a + 5, a + 6, a + 7, a + 8, a + 9,
            a + 10, a + 11))
        return NULL;
    const tower_layer_weights w = {
        pointer(a[0]), pointer(a[1]), pointer(a[2]), pointer(a[3]),  pointer(a[4]),  pointer(a[5]), pointer(a[6]),
        pointer(a[7]), pointer(a[8]), pointer(a[9]), pointer(a[10]), pointer(a[11]), is_windowed,
    };
    tower *t = owner_begin(self);
    if (!t) return NULL;
    if (number < 0 || number >= tower_get_shape(t)->num_layers) {
        owner_end(self, true);
        return PyErr_Format(PyExc_IndexError, "no layer %ld", number);
    }
    bool is_done;
    Py_BEGIN_ALLOW_THREADS
    is_done = tower_set_layer(t, number, &w);
    Py_END_ALLOW_THREADS
    return owner_end(self, is_done);
}

static PyObject *py_set_merger(PyObject *self, PyObject *args) {
    long number, after;
    int is_norm_of_merged;
    address a[6];
    if (!PyArg_ParseTuple(
            args, "llpKKKKKK", &number, &after, &is_norm_of_merged, a, a + 1, a + 2, a + 3, a + 4, a + 5))
        return NULL;
    const merger_weights w = {pointer(a[0]), pointer(a[1]), pointer(a[2]), pointer(a[3]),
                              pointer(a[4]), pointer(a[5]), after,         is_norm_of_merged};
    tower *t = owner_begin(self);
    if (!t) return NULL;
    if (number < 0 || number > tower_get_shape(t)->num_levels) {
        owner_end(self, true);
        return PyErr_Format(PyExc_IndexError, "no merger %ld", number);
    }
    bool is_done;
    Py_BEGIN_ALLOW_THREADS
    is_done = tower_set_merger(t, number, &w);
    Py_END_ALLOW_THREADS
    return owner_end(self, is_done);
}

/* What a pause needs to come back to Python. */
typedef struct {
    PyThreadState *state;
    PyObject *callable;
} python_pause;

static bool call_pause(void *context) {
    python_pause *p = context;
    PyEval_RestoreThread(p->state);
    PyObject *result = PyObject_CallNoArgs(p->callable);
    const bool is_well = result != NULL;
    Py_XDECREF(result);
    p->state = PyEval_SaveThread();
    return is_well;
}

static tower_outcome run(tower *t, const tower_step *s, PyObject *callable, const int32_t *asked, double products) {
    python_pause context = {PyEval_SaveThread(), callable};
    const tower_pause pause = {call_pause, &context, asked, products};
    const tower_outcome outcome = tower_run(t, s, asked ? &pause : NULL);
    PyEval_RestoreThread(context.state);
    return outcome;
}

static PyObject *py_encode(PyObject *self, PyObject *args) {
    PyObject *pause = Py_None;
    int is_embedded = 0, is_alone = 0;
    double piece_products = 0;
    address patches, grids, order, windows, cosine, sine, out, asked = 0, kept = 0;
    tower_step s = {0};
    if (!PyArg_ParseTuple(
            args, "lKKlKKlKKlK|OpKdKlp", &s.rows, &patches, &grids, &s.num_grids, &order, &windows, &s.num_windows, &cosine, &sine,
            &s.num_positions, &out, &pause, &is_embedded, &asked, &piece_products, &kept, &s.num_kept, &is_alone))
        return NULL;
    s.patches = pointer(patches);
    s.is_embedded = is_embedded;
    s.is_alone = is_alone;
    s.grids = pointer(grids);
    s.order = pointer(order);
    s.windows = pointer(windows);
    s.cosine = pointer(cosine);
    s.sine = pointer(sine);
    s.kept = pointer(kept);
    s.out = pointer(out);
    tower *t = owner_begin(self);
    if (!t) return NULL;
    const char *problem = tower_check(t, &s);
    if (problem) {
        owner_end(self, true);
        return PyErr_Format(PyExc_ValueError, "The pictures name %s", problem);
    }
    const tower_outcome outcome = run(t, &s, pause, pointer(asked), piece_products);
    if (outcome != TOWER_ABANDONED) return owner_end(self, outcome == TOWER_DONE);
    ((owner *)self)->is_busy = false; /* with the exception that the pause has set */
    return NULL;
}

static PyMethodDef methods[] = {
    {"set_embedding", py_set_embedding, METH_VARARGS, "set_embedding(weights, bias, positions)"},
    {"set_layer", py_set_layer, METH_VARARGS,
     "set_layer(number, is_windowed, norm1, its bias, norm2, its bias, qkv, out, up, down, biases of these four)"},
    {"set_merger", py_set_merger, METH_VARARGS,
     "set_merger(number, after, is_norm_of_merged, norm, its bias, up, down, biases of these two)"},
    {"encode", py_encode, METH_VARARGS,
     "encode(rows, patches, grids, num_grids, order, windows, num_windows, cos, sin, num_positions, out, "
     "pause=None, is_embedded=False, asked=0, piece_products=0, kept=0, num_kept=0, is_alone=False)"},
    {"close", owner_close, METH_NOARGS, "Join the threads and give back the memory."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, object_new}, {Py_tp_dealloc, owner_free}, {Py_tp_methods, methods}, {Py_tp_getset, owner_attributes},
    {Py_tp_doc, "NativeTower(kernels, threads, num_layers, hidden, heads, head_dim, intermediate, channels, frames, "
                "patch_pixels, merge, out_hidden, num_levels, position_side, is_bf16, is_rms, activation, eps, scale, "
                "alone_products)"},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "chiasm.engines.embedded.decoder._native.NativeTower",
    .basicsize = sizeof(owner),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

PyObject *new_tower_type(void) { return PyType_FromSpec(&spec); }
