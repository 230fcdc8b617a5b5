#include "jpeg_rows.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if __has_include(<jpeglib.h>)
#include <jpeglib.h>
#endif

#if defined(LIBJPEG_TURBO_VERSION_NUMBER) && LIBJPEG_TURBO_VERSION_NUMBER >= 2000000 /* not that of another libjpeg */

/* Colours at the border of what is decoded are not those of the whole picture, as their neighbours are missing. That
 * concerns a pixel or two; this is the widest block of samples that belong together. */
#define BORDER 32

#define FUNCTIONS(f)                                                                                                     \
    f(jpeg_std_error) f(jpeg_CreateDecompress) f(jpeg_destroy_decompress) f(jpeg_mem_src) f(jpeg_read_header)            \
    f(jpeg_has_multiple_scans) f(jpeg_start_decompress) f(jpeg_crop_scanline) f(jpeg_read_scanlines)                     \
    f(jpeg_finish_decompress)
#define FIELD(name) __typeof__(&name) name;
#define LOAD(name) && (*(void **)&library.name = dlsym(handle, #name))

static struct { FUNCTIONS(FIELD) } library;
static bool has_library;

struct jpeg_rows {
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    jmp_buf escape; /* where the library's errors lead, set by whoever calls it */
    uint8_t *unused; /* a row */
    long first;
    double seconds;
    bool is_broken;
};

static void leave(j_common_ptr info) { longjmp(((jpeg_rows *)info->client_data)->escape, 1); }

/* What the library would mend by guessing is for others to judge. */
static void on_message(j_common_ptr info, int level) {
    if (level < 0) leave(info);
}

static void say_nothing(j_common_ptr info) { (void)info; }

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Memory for a decoder that has not begun; NULL when there is none. */
static jpeg_rows *rows_make(void) {
    jpeg_rows *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->info.err = library.jpeg_std_error(&r->errors);
    r->info.client_data = r;
    r->errors.error_exit = leave;
    r->errors.emit_message = on_message;
    r->errors.output_message = say_nothing;
    return r;
}

static void rows_free(jpeg_rows *r) {
    library.jpeg_destroy_decompress(&r->info);
    free(r->unused);
    free(r);
}

static bool create(jpeg_rows *r) {
    if (setjmp(r->escape)) return false;
    library.jpeg_CreateDecompress(&r->info, JPEG_LIB_VERSION, sizeof r->info); /* compares both with its own */
    return true;
}

bool jpeg_rows_library(const char *path) {
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle || !(true FUNCTIONS(LOAD))) return false;
    jpeg_rows *r = rows_make();
    has_library = r && create(r);
    if (r) rows_free(r);
    return has_library;
}

static bool is_everyday(jpeg_rows *r) {
    const struct jpeg_decompress_struct *info = &r->info;
    return info->num_components == 3 && info->jpeg_color_space == JCS_YCbCr && info->data_precision == 8 &&
           !info->progressive_mode && !info->arith_code && !library.jpeg_has_multiple_scans(&r->info);
}

static bool begin(jpeg_rows *r, const uint8_t *data, size_t bytes, long width, long height, long first, long end) {
    if (setjmp(r->escape)) return false;
    struct jpeg_decompress_struct *info = &r->info;
    library.jpeg_mem_src(info, data, bytes);
    library.jpeg_read_header(info, TRUE);
    if (!is_everyday(r) || info->image_width != width || info->image_height != height) return false;
    info->out_color_space = JCS_RGB;
    library.jpeg_start_decompress(info);
    JDIMENSION from = (JDIMENSION)(first > BORDER ? first - BORDER : 0);
    JDIMENSION columns = (JDIMENSION)(end < width - BORDER ? end + BORDER : width) - from;
    if (columns < info->output_width) library.jpeg_crop_scanline(info, &from, &columns);
    r->first = from;
    r->unused = malloc(3 * (size_t)info->output_width);
    return r->unused && info->output_components == 3;
}

jpeg_rows *jpeg_rows_open(const uint8_t *data, size_t bytes, long width, long height, long first, long end) {
    jpeg_rows *r = has_library ? rows_make() : NULL;
    if (!r) return NULL;
    const double since = now();
    if (create(r) && begin(r, data, bytes, width, height, first, end)) {
        r->seconds = now() - since;
        return r;
    }
    rows_free(r);
    return NULL;
}

long jpeg_rows_first(const jpeg_rows *r) { return r->first; }

long jpeg_rows_width(const jpeg_rows *r) { return r->info.output_width; }

static bool pass_over(jpeg_rows *r, JDIMENSION end) {
    if (setjmp(r->escape)) return false;
    while (r->info.output_scanline < end)
        if (!library.jpeg_read_scanlines(&r->info, &r->unused, 1)) return false;
    return true;
}

static bool take(jpeg_rows *r, JDIMENSION count, uint8_t *const *rows) {
    if (setjmp(r->escape)) return false;
    const JDIMENSION start = r->info.output_scanline;
    while (r->info.output_scanline - start < count) {
        const JDIMENSION done = r->info.output_scanline - start;
        if (!library.jpeg_read_scanlines(&r->info, (JSAMPARRAY)rows + done, count - done)) return false;
    }
    return true;
}

void jpeg_rows_read(jpeg_rows *r, long y, int count, uint8_t *const *rows) {
    if (r->is_broken) return;
    const double since = now();
    r->is_broken = !pass_over(r, (JDIMENSION)y) || !take(r, (JDIMENSION)count, rows);
    r->seconds += now() - since;
}

static bool finish(jpeg_rows *r) {
    if (setjmp(r->escape)) return false;
    return library.jpeg_finish_decompress(&r->info);
}

bool jpeg_rows_close(jpeg_rows *r, double *seconds) {
    const double since = now();
    const bool is_good = !r->is_broken && pass_over(r, r->info.output_height) && finish(r);
    *seconds = r->seconds + now() - since;
    rows_free(r);
    return is_good;
}

#else

bool jpeg_rows_library(const char *path) {
    (void)path;
    return false;
}

jpeg_rows *jpeg_rows_open(const uint8_t *data, size_t bytes, long width, long height, long first, long end) {
    (void)data, (void)bytes, (void)width, (void)height, (void)first, (void)end;
    return NULL;
}

long jpeg_rows_first(const jpeg_rows *r) {
    (void)r;
    return 0;
}

long jpeg_rows_width(const jpeg_rows *r) {
    (void)r;
    return 0;
}

void jpeg_rows_read(jpeg_rows *r, long y, int count, uint8_t *const *rows) { (void)r, (void)y, (void)count, (void)rows; }

bool jpeg_rows_close(jpeg_rows *r, double *seconds) {
    (void)r, (void)seconds;
    return false;
}

#endif
