#include "jpeg_header.h"

#include <string.h>

const uint8_t jpeg_zigzag[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

enum { SOF0 = 0xC0, SOF1 = 0xC1, DHT = 0xC4, SOI = 0xD8, SOS = 0xDA, DQT = 0xDB, DRI = 0xDD, APP0 = 0xE0, APP14 = 0xEE };
enum { COMMENT = 0xFE };

typedef struct {
    bool has_frame, is_jfif, is_adobe;
    uint8_t adobe_transform;
} seen;

static bool take_quant(jpeg_header *h, const uint8_t *at, size_t size) {
    for (; size; at += 65, size -= 65) {
        if (size < 65 || at[0] > 3) return false; /* also tables of 16 bits */
        for (int i = 0; i < 64; i++) {
            if (!at[1 + i]) return false;
            h->quant[at[0]][jpeg_zigzag[i]] = at[1 + i];
        }
    }
    return true;
}

static bool take_codes(jpeg_header *h, const uint8_t *at, size_t size) {
    while (size) {
        if (size < 17 || (at[0] & 15) > 3 || at[0] >> 4 > 1) return false;
        code_lengths *codes = at[0] >> 4 ? &h->ac[at[0] & 15] : &h->dc[at[0] & 15];
        size_t total = 0;
        for (int length = 1; length <= 16; length++) total += codes->counts[length] = at[length];
        if (total > 256 || size < 17 + total) return false;
        memset(codes->symbols, 0, sizeof codes->symbols);
        memcpy(codes->symbols, at + 17, total);
        codes->is_set = true;
        at += 17 + total;
        size -= 17 + total;
    }
    return true;
}

static bool take_frame(jpeg_header *h, const uint8_t *at, size_t size) {
    if (size < 6 || at[0] != 8) return false;
    h->height = at[1] << 8 | at[2];
    h->width = at[3] << 8 | at[4];
    h->num_components = at[5];
    if (!h->width || !h->height || (at[5] != 1 && at[5] != 3) || size != 6 + 3 * (size_t)at[5]) return false;
    h->across = at[7] >> 4;
    h->down = at[7] & 15;
    for (int i = 0; i < h->num_components; i++) {
        const uint8_t *one = at + 6 + 3 * i;
        if ((i && one[1] != 0x11) || one[2] > 3) return false;
        for (int before = 0; before < i; before++)
            if (h->components[before].id == one[0]) return false;
        h->components[i].id = one[0];
        h->components[i].quant = one[2];
    }
    if (h->num_components == 1) { /* whatever the factors, they are those of the picture, too */
        const bool is_sound = h->across >= 1 && h->across <= 4 && h->down >= 1 && h->down <= 4;
        h->across = h->down = 1;
        return is_sound;
    }
    return (h->across == 1 && h->down == 1) || (h->across == 2 && (h->down == 1 || h->down == 2));
}

static bool take_scan(jpeg_header *h, const uint8_t *at, size_t size) {
    const int count = h->num_components;
    if (size != 4 + 2 * (size_t)count || at[0] != count) return false;
    for (int i = 0; i < count; i++) {
        const uint8_t *one = at + 1 + 2 * i;
        if (one[0] != h->components[i].id || one[1] >> 4 > 3 || (one[1] & 15) > 3) return false;
        h->components[i].dc = one[1] >> 4;
        h->components[i].ac = one[1] & 15;
        if (!h->dc[one[1] >> 4].is_set || !h->ac[one[1] & 15].is_set || !h->quant[h->components[i].quant][0])
            return false;
    }
    const uint8_t *range = at + 1 + 2 * count;
    return range[0] == 0 && range[1] == 63 && range[2] == 0;
}

/* What three components mean, by the rules that decoders share. */
static bool is_ycc(const jpeg_header *h, const seen *s) {
    if (h->num_components == 1 || s->is_jfif) return true;
    if (s->is_adobe) return s->adobe_transform == 1;
    return !(h->components[0].id == 'R' && h->components[1].id == 'G' && h->components[2].id == 'B');
}

static bool take(jpeg_header *h, seen *s, int marker, const uint8_t *at, size_t size) {
    switch (marker) {
    case DQT: return take_quant(h, at, size);
    case DHT: return take_codes(h, at, size);
    case SOF0:
    case SOF1:
        if (s->has_frame) return false;
        s->has_frame = true;
        return take_frame(h, at, size);
    case DRI:
        if (size != 2) return false;
        h->restart_blocks = at[0] << 8 | at[1];
        return true;
    case APP0:
        if (size < 14 || memcmp(at, "JFIF", 5)) return true;
        s->is_jfif = true;
        return at[5] == 1; /* of other versions decoders warn */
    case APP14:
        if (size >= 12 && !memcmp(at, "Adobe", 5)) {
            s->is_adobe = true;
            s->adobe_transform = at[11];
        }
        return true;
    default: return marker == COMMENT || (marker > APP0 && marker < APP14) || marker == APP14 + 1;
    }
}

bool jpeg_read_header(const uint8_t *data, size_t size, jpeg_header *h) {
    memset(h, 0, sizeof *h);
    seen s = {0};
    if (size < 4 || data[0] != 0xFF || data[1] != SOI) return false;
    for (size_t at = 2; at + 4 <= size;) {
        const int marker = data[at + 1];
        const size_t length = (size_t)data[at + 2] << 8 | data[at + 3];
        if (data[at] != 0xFF || length < 2 || length > size - at - 2) return false;
        if (marker == SOS) {
            h->scan = at + 2 + length;
            return s.has_frame && take_scan(h, data + at + 4, length - 2) && is_ycc(h, &s);
        }
        if (!take(h, &s, marker, data + at + 4, length - 2)) return false;
        at += 2 + length;
    }
    return false;
}
