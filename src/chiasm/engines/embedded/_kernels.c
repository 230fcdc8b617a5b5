/* The parts of a decode step between matrix products, for one thread and few rows.
 *
 * A small model's step is hundreds of tensor operations of a microsecond each, most of it dispatch. These three
 * functions replace all but the matrix products. They take addresses, as integers, of contiguous float32 or bfloat16
 * memory; arithmetic is float32 throughout. Callers (kernels.py) check shapes. Sequences may differ in length: each row
 * attends to its own context and touches nothing else.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
/* One build serves every x86-64; the loader picks the widest vectors the machine has. */
#define CLONED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONED
#endif

typedef union { uint32_t bits; float value; } bits32;

INLINE float widen(uint16_t x) { bits32 u = {.bits = (uint32_t)x << 16}; return u.value; }

INLINE uint16_t narrow(float x) { /* round to nearest, ties to even; a NaN stays one */
    bits32 u = {.value = x};
    uint32_t rounded = (u.bits + 0x7fff + ((u.bits >> 16) & 1)) >> 16;
    return (uint16_t)((u.bits & 0x7fffffff) > 0x7f800000 ? (u.bits >> 16) | 0x40 : rounded);
}

INLINE float get(const void *p, size_t i, int bf16) { return bf16 ? widen(((const uint16_t *)p)[i]) : ((const float *)p)[i]; }

INLINE void set(void *p, size_t i, float x, int bf16) {
    if (bf16) ((uint16_t *)p)[i] = narrow(x);
    else ((float *)p)[i] = x;
}

INLINE const void *at(const void *p, size_t i, int bf16) { return (const char *)p + i * (bf16 ? 2 : 4); }

/* exp for x <= 0, relative error below 3e-7: 2^n times a polynomial on [-ln2/2, ln2/2]. Vectorises. */
INLINE float exp_negative(float x) {
    x = x < -87.0f ? -87.0f : x;
    float n = (float)(int)(x * 1.44269504f - 0.5f);
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    bits32 scale = {.bits = (uint32_t)((int)n + 127) << 23};
    return p * scale.value;
}

/* out = x / rms(x) * weight, per row */
INLINE void rms_norm_rows(const void *x, const void *weight, void *out, long rows, long width, float eps, int bf16) {
    for (long row = 0; row < rows; row++) {
        const void *from = at(x, row * width, bf16);
        void *to = (void *)at(out, row * width, bf16);
        float sum = 0;
        for (long i = 0; i < width; i++) { float v = get(from, i, bf16); sum += v * v; }
        float factor = 1.0f / sqrtf(sum / (float)width + eps);
        for (long i = 0; i < width; i++) set(to, i, get(from, i, bf16) * factor * get(weight, i, bf16), bf16);
    }
}

/* out = silu(gate) * up, where a row is [gate, up] */
INLINE void silu_mul_rows(const void *gate_up, void *out, long rows, long width, int bf16) {
    for (long row = 0; row < rows; row++) {
        const void *gate = at(gate_up, row * 2 * width, bf16), *up = at(gate_up, row * 2 * width + width, bf16);
        void *to = (void *)at(out, row * width, bf16);
        for (long i = 0; i < width; i++) {
            float g = get(gate, i, bf16);
            float e = exp_negative(g < 0 ? g : -g);
            float sigmoid = (g < 0 ? e : 1.0f) / (1.0f + e);
            set(to, i, g * sigmoid * get(up, i, bf16), bf16);
        }
    }
}

typedef struct {
    const void *qkv;       /* [rows, heads + 2 x kv_heads, dim] */
    const void *qk_norm;   /* [heads + kv_heads, dim] or NULL */
    const void *cosine;    /* [rows, dim] */
    const void *sine;      /* [rows, dim], sign of the rotation included */
    void *kv;              /* [rows.., 2, kv_heads, max_tokens, dim], one slot per row */
    const int64_t *contexts; /* [rows]: tokens each slot holds already */
    void *out;             /* [rows, heads x dim] */
    long rows, heads, kv_heads, dim, max_tokens;
    float scale, eps;
} attention;

/* One head of one row: normalise, rotate, into `to` as float32. */
INLINE void rotate(const attention *a, long row, long head, float *to, int bf16) {
    long dim = a->dim, half = dim / 2;
    const void *x = at(a->qkv, (row * (a->heads + 2 * a->kv_heads) + head) * dim, bf16);
    const void *c = at(a->cosine, row * dim, bf16), *s = at(a->sine, row * dim, bf16);
    float v[dim], factor = 1;
    for (long i = 0; i < dim; i++) v[i] = get(x, i, bf16);
    if (a->qk_norm) {
        const void *weight = at(a->qk_norm, head * dim, bf16);
        float sum = 0;
        for (long i = 0; i < dim; i++) sum += v[i] * v[i];
        factor = 1.0f / sqrtf(sum / (float)dim + a->eps);
        for (long i = 0; i < dim; i++) v[i] *= factor * get(weight, i, bf16);
    }
    for (long i = 0; i < half; i++) {
        to[i] = v[i] * get(c, i, bf16) + v[i + half] * get(s, i, bf16);
        to[i + half] = v[i + half] * get(c, i + half, bf16) + v[i] * get(s, i + half, bf16);
    }
}

INLINE void write_kv(const attention *a, long row, float *head, int bf16) {
    long dim = a->dim, slot = row * 2 * a->kv_heads;
    for (long h = 0; h < a->kv_heads; h++) {
        size_t key = ((slot + h) * a->max_tokens + a->contexts[row]) * dim;
        size_t value = ((slot + a->kv_heads + h) * a->max_tokens + a->contexts[row]) * dim;
        rotate(a, row, a->heads + h, head, bf16);
        for (long i = 0; i < dim; i++) set(a->kv, key + i, head[i], bf16);
        const void *v = at(a->qkv, (row * (a->heads + 2 * a->kv_heads) + a->heads + a->kv_heads + h) * dim, bf16);
        memcpy((void *)at(a->kv, value, bf16), v, dim * (bf16 ? 2 : 4));
    }
}

/* softmax(scale x q.K) V for one query head over `length` tokens */
INLINE void attend_head(
    const float *q, const void *keys, const void *values, float *scores, float *sum, long length, long dim, float scale,
    int bf16
) {
    float largest = -INFINITY, total = 0;
    for (long t = 0; t < length; t++) {
        const void *k = at(keys, t * dim, bf16);
        float dot = 0;
        for (long i = 0; i < dim; i++) dot += q[i] * get(k, i, bf16);
        scores[t] = dot * scale;
    }
    for (long t = 0; t < length; t++) largest = scores[t] > largest ? scores[t] : largest;
    for (long t = 0; t < length; t++) scores[t] = exp_negative(scores[t] - largest);
    for (long t = 0; t < length; t++) total += scores[t];
    for (long i = 0; i < dim; i++) sum[i] = 0;
    for (long t = 0; t < length; t++) {
        const void *v = at(values, t * dim, bf16);
        float p = scores[t];
        for (long i = 0; i < dim; i++) sum[i] += p * get(v, i, bf16);
    }
    for (long i = 0; i < dim; i++) sum[i] /= total;
}

/* `scratch` holds 2 x dim + max_tokens floats */
INLINE void attend_rows(const attention *a, float *scratch, int bf16) {
    long dim = a->dim, group = a->heads / a->kv_heads;
    float *q = scratch, *sum = scratch + dim, *scores = scratch + 2 * dim;
    for (long row = 0; row < a->rows; row++) {
        write_kv(a, row, q, bf16);
        for (long head = 0; head < a->heads; head++) {
            size_t key = (row * 2 * a->kv_heads + head / group) * a->max_tokens * dim;
            const void *keys = at(a->kv, key, bf16);
            const void *values = at(a->kv, key + (size_t)a->kv_heads * a->max_tokens * dim, bf16);
            rotate(a, row, head, q, bf16);
            attend_head(q, keys, values, scores, sum, a->contexts[row] + 1, dim, a->scale, bf16);
            void *to = (void *)at(a->out, (row * a->heads + head) * dim, bf16);
            for (long i = 0; i < dim; i++) set(to, i, sum[i], bf16);
        }
    }
}

CLONED static void rms_norm_f32(const void *x, const void *w, void *out, long rows, long width, float eps) { rms_norm_rows(x, w, out, rows, width, eps, 0); }
CLONED static void rms_norm_bf16(const void *x, const void *w, void *out, long rows, long width, float eps) { rms_norm_rows(x, w, out, rows, width, eps, 1); }
CLONED static void silu_mul_f32(const void *x, void *out, long rows, long width) { silu_mul_rows(x, out, rows, width, 0); }
CLONED static void silu_mul_bf16(const void *x, void *out, long rows, long width) { silu_mul_rows(x, out, rows, width, 1); }
CLONED static void attend_f32(const attention *a, float *scratch) { attend_rows(a, scratch, 0); }
CLONED static void attend_bf16(const attention *a, float *scratch) { attend_rows(a, scratch, 1); }

/* ---- Python: addresses and sizes as integers; the GIL is kept, since a call is shorter than giving it away ---- */

static int addresses(PyObject *const *args, void **out, int count) {
    for (int i = 0; i < count; i++) out[i] = PyLong_AsVoidPtr(args[i]);
    return PyErr_Occurred() ? -1 : 0;
}

static int counts(PyObject *const *args, long *out, int count) {
    for (int i = 0; i < count; i++) out[i] = PyLong_AsLong(args[i]);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *wrong_count(const char *name) {
    return PyErr_Format(PyExc_TypeError, "%s: wrong number of arguments", name);
}

static PyObject *py_rms_norm(PyObject *self, PyObject *const *args, Py_ssize_t num_args) {
    void *p[3];
    long n[3];
    if (num_args != 7) return wrong_count("rms_norm");
    if (addresses(args, p, 3) || counts(args + 3, n, 3)) return NULL;
    double eps = PyFloat_AsDouble(args[6]);
    if (PyErr_Occurred()) return NULL;
    (n[2] ? rms_norm_bf16 : rms_norm_f32)(p[0], p[1], p[2], n[0], n[1], (float)eps);
    Py_RETURN_NONE;
}

static PyObject *py_silu_mul(PyObject *self, PyObject *const *args, Py_ssize_t num_args) {
    void *p[2];
    long n[3];
    if (num_args != 5) return wrong_count("silu_mul");
    if (addresses(args, p, 2) || counts(args + 2, n, 3)) return NULL;
    (n[2] ? silu_mul_bf16 : silu_mul_f32)(p[0], p[1], n[0], n[1]);
    Py_RETURN_NONE;
}

static PyObject *py_attend(PyObject *self, PyObject *const *args, Py_ssize_t num_args) {
    void *p[7];
    long n[6];
    if (num_args != 15) return wrong_count("attend");
    if (addresses(args, p, 7) || counts(args + 7, n, 6)) return NULL;
    double scale = PyFloat_AsDouble(args[13]), eps = PyFloat_AsDouble(args[14]);
    if (PyErr_Occurred()) return NULL;
    attention a = {p[0], p[1], p[2], p[3], p[4], p[5], p[6], n[0], n[1], n[2], n[3], n[4], (float)scale, (float)eps};
    float *scratch = malloc((2 * a.dim + a.max_tokens) * sizeof(float));
    if (!scratch) return PyErr_NoMemory();
    (n[5] ? attend_bf16 : attend_f32)(&a, scratch);
    free(scratch);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"rms_norm", (PyCFunction)(void (*)(void))py_rms_norm, METH_FASTCALL,
     "rms_norm(x, weight, out, rows, width, is_bf16, eps)"},
    {"silu_mul", (PyCFunction)(void (*)(void))py_silu_mul, METH_FASTCALL, "silu_mul(gate_up, out, rows, width, is_bf16)"},
    {"attend", (PyCFunction)(void (*)(void))py_attend, METH_FASTCALL,
     "attend(qkv, qk_norm, cos, sin, kv, contexts, out, rows, heads, kv_heads, dim, max_tokens, is_bf16, scale, eps)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", "Decode kernels; see kernels.py.", -1, methods};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModule_Create(&module); }
