/* Decode broken JPEGs under a sanitizer. Needs nothing of Python; takes files, small ones of every kind:
 *
 *   cd src/chiasm/media/picture/native
 *   gcc -std=gnu11 -g -O1 -fsanitize=address,undefined -fno-sanitize-recover -I. ../../../../../tools/jpeg_stress.c \
 *     jpeg.c jpeg_bits.c jpeg_header.c jpeg_pixels.c -o stress && ./stress 20000 a.jpg b.jpg
 *
 * Each file is decoded as often as the first argument says, with some bytes changed, bytes left out or its end cut off,
 * a random part at a time. Data and pixels lie in memory of exactly their size.
 */
#include "jpeg.h"
#include "jpeg_header.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned seed = 1;

static long below(long limit) { return (long)((unsigned long)rand_r(&seed) % (unsigned long)limit); }

static uint8_t *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) exit(2);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *data = malloc(*size);
    if (!data || fread(data, 1, *size, file) != *size) exit(2);
    fclose(file);
    return data;
}

static uint8_t *broken(const uint8_t *data, size_t *size) {
    static const uint8_t marks[] = {0xFF, 0x00, 0xD0, 0xD7, 0xD9, 0xDA};
    if (!below(4)) *size -= (size_t)below((long)*size / 2);
    uint8_t *copy = malloc(*size);
    if (!copy) exit(2);
    memcpy(copy, data, *size);
    for (long changes = below(4); changes > 0; changes--)
        copy[below((long)*size)] = below(2) ? marks[below(sizeof marks)] : (uint8_t)below(256);
    if (!below(8) && *size > 100) { /* bytes left out */
        const size_t at = (size_t)below((long)*size - 50), count = (size_t)below(40) + 1;
        memmove(copy + at, copy + at + count, *size - at - count);
        *size -= count;
        copy = realloc(copy, *size);
    }
    return copy;
}

static long try_one(const uint8_t *data, size_t size) {
    uint8_t *copy = broken(data, &size);
    jpeg_header header;
    long done = 0;
    if (jpeg_read_header(copy, size, &header) && header.width * header.height < 1 << 22) {
        picture_part part = {below(header.width), below(header.height), 0, 0};
        part.width = 1 + below(header.width - part.left);
        part.height = 1 + below(header.height - part.top);
        uint8_t *out = malloc((size_t)(3 * part.width * part.height));
        if (!out) exit(2);
        done = jpeg_decode(copy, size, header.width, header.height, &part, out) == JPEG_DONE;
        free(out);
    }
    free(copy);
    return done;
}

int main(int count, char **arguments) {
    for (int i = 2; i < count; i++) {
        size_t size;
        uint8_t *data = read_file(arguments[i], &size);
        long done = 0;
        for (long times = atol(arguments[1]); times > 0; times--) done += try_one(data, size);
        printf("%s: %ld decoded\n", arguments[i], done);
        free(data);
    }
    return 0;
}
