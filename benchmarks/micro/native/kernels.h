#include <math.h>
#include <stddef.h>
#include <stdint.h>
enum { SET, ADD, BIAS, SWIGLU };
struct Kernels {
    int vector;
    void (*linear)(int, int, const float *, int, int, const void *, int, int, float *, int, const float *);
    void (*pack)(int, int, const void *, int, int, void *);
    void (*norm)(const float *, const float *, int, float, float *);
    void (*rotate)(float *, const float *, const float *, int);
    void (*attend)(const float *, const float *, const float *, int, int, int, float, float *, float *);
};
