/* Matrices of GGUF files, every weight with the value that the file gives it, in the order in which the step reads them.

   16 rows lie side by side in a panel: a vector of codes has 4 columns of each, so that a product with an input is one
   instruction and a row's sum never leaves its lane.  A panel is read in the order in which it lies: units of some slices
   of 32 columns, each with its scales before its codes, so that what is fetched ahead of them is what comes next.  Of
   codes of 4 to 6 bits the low 4 of columns 0 to 15 and of 16 to 31 share bytes; the high ones follow.  */

#pragma once

#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "system.h"

#define PANEL 16 /* rows of a matrix that lie side by side */
#define SLICE 32 /* columns whose codes lie together */

/* what a matrix is made of; the numbers are those of files */
enum {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, IQ4_NL = 20,
    ROWS8 = 24, /* 8-bit integers with one scale a row */
    BF16 = 30
};

typedef struct {
    const void *weights; /* ROWS8: (chunks, out, width), columns that are read together; others: panels */
    const float *scales; /* ROWS8: (out) */
    const float *bias;   /* (out), or NULL */
    int64_t out, in, chunks, width, kind;
} Matrix;

static const int8_t NONLINEAR[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* bits of a code, 0 for numbers that are stored as such */
INLINE int bits_of(int kind) {
    switch (kind) {
        case Q4_0: case Q4_1: case Q4_K: case IQ4_NL: return 4;
        case Q5_0: case Q5_1: case Q5_K: return 5;
        case Q6_K: return 6;
        case Q8_0: return 8;
        default: return 0;
    }
}

/* columns of a block of a file, and its bytes */
INLINE int64_t entries_of(int kind) {
    return kind == Q4_K || kind == Q5_K || kind == Q6_K ? 256 : bits_of(kind) ? 32 : 1;
}

INLINE int64_t bytes_of(int kind) {
    switch (kind) {
        case F32: return 4;
        case Q4_0: case IQ4_NL: return 18;
        case Q4_1: return 20;
        case Q5_0: return 22;
        case Q5_1: return 24;
        case Q8_0: return 34;
        case Q4_K: return 144;
        case Q5_K: return 176;
        case Q6_K: return 210;
        default: return 2;
    }
}

INLINE int has_least(int kind) { return kind == Q4_1 || kind == Q5_1 || kind == Q4_K || kind == Q5_K; }

/* bytes of the scales that a block of 16 rows has in a panel: d of each row, the least value or its scale, then 8 bits
   for each row and slice */
INLINE int64_t scale_bytes(int kind) {
    int64_t wide = has_least(kind) ? 4 * PANEL : 2 * PANEL;
    return wide + (entries_of(kind) == 256 ? 16 * PANEL : 0);
}

/* slices of a unit, whose scales fill whole lines of a cache; the last of a panel may have fewer */
INLINE int64_t unit_of(int kind) { return kind == Q6_K ? 16 : 8; }

/* bytes of the scales, and of the codes, of some whole blocks */
INLINE int64_t scales_in(int kind, int64_t slices) { return slices * SLICE / entries_of(kind) * scale_bytes(kind); }
INLINE int64_t codes_in_slices(int kind, int64_t slices) { return slices * 64 * bits_of(kind); }

/* where the scales of the block that a slice is in are in a panel, and its codes */
INLINE int64_t scales_place(int kind, int64_t g) {
    int64_t before = g / unit_of(kind) * unit_of(kind), of = entries_of(kind) / SLICE;
    return scales_in(kind, before + (g - before) / of * of) + codes_in_slices(kind, before);
}
INLINE int64_t codes_place(int kind, int64_t in, int64_t g) {
    int64_t unit = unit_of(kind), end = (g / unit + 1) * unit;
    return scales_in(kind, end < in / SLICE ? end : in / SLICE) + codes_in_slices(kind, g);
}

INLINE int64_t bytes_of_panel(int kind, int64_t in) {
    if (!bits_of(kind)) return in * PANEL * bytes_of(kind);
    return (scales_in(kind, in / SLICE) + codes_in_slices(kind, in / SLICE) + 63) / 64 * 64;
}

/* what is added to the value of a code, before its scale */
INLINE int offset_of(int kind) { return kind == Q4_0 ? -8 : kind == Q5_0 ? -16 : kind == Q6_K ? -32 : 0; }

INLINE float half_value(uint16_t half) {
    union { uint32_t bits; float value; } wide;
    uint32_t exponent = half >> 10 & 31, digits = half & 1023;
    wide.bits = exponent ? (exponent + 112) << 23 | digits << 13 : 0;
    if (exponent == 31) wide.bits |= 0x7f800000;
    if (!exponent) wide.value = digits * 0x1p-24f;
    wide.bits |= (uint32_t)(half & 0x8000) << 16;
    return wide.value;
}

INLINE float brain_value(uint16_t brain) {
    union { uint32_t bits; float value; } wide = {(uint32_t)brain << 16};
    return wide.value;
}

/* ---- from blocks of a file to panels */

/* codes of a slice of a block */
INLINE void codes_of(int kind, const uint8_t *block, int g, uint8_t *codes) {
    const uint8_t *low = block + (has_least(kind) ? 4 : 2);
    uint32_t high;
    switch (kind) {
        case Q4_0: case Q4_1: case IQ4_NL:
            for (int i = 0; i < 16; i++) codes[i] = low[i] & 15, codes[i + 16] = low[i] >> 4;
            break;
        case Q5_0: case Q5_1:
            memcpy(&high, low, 4);
            for (int i = 0; i < 16; i++) codes[i] = (low[4 + i] & 15) | (high >> i << 4 & 16);
            for (int i = 0; i < 16; i++) codes[i + 16] = low[4 + i] >> 4 | (high >> (i + 16) << 4 & 16);
            break;
        case Q8_0:
            memcpy(codes, low, 32);
            break;
        case Q4_K:
            for (int i = 0; i < 32; i++) codes[i] = block[16 + g / 2 * 32 + i] >> g % 2 * 4 & 15;
            break;
        case Q5_K:
            for (int i = 0; i < 32; i++)
                codes[i] = (block[48 + g / 2 * 32 + i] >> g % 2 * 4 & 15) | (block[16 + i] >> g << 4 & 16);
            break;
        case Q6_K:
            for (int i = 0; i < 32; i++)
                codes[i] = (block[g / 4 * 64 + g % 2 * 32 + i] >> g / 2 % 2 * 4 & 15) |
                           (block[128 + g / 4 * 32 + i] >> g % 4 * 2 << 4 & 48);
    }
}

/* puts codes of a slice into those of a panel; words have 4 columns each */
INLINE void put_codes(int kind, const uint8_t *codes, uint8_t *place, int row) {
    const uint32_t low = 0x0f0f0f0f, one = 0x01010101, two = 0x03030303;
    int bits = bits_of(kind);
    uint32_t words[8], high[2] = {0}, *to = (uint32_t *)place + row;
    memcpy(words, codes, sizeof words);
    for (int j = 0; j < 8; j++) {
        if (bits == 8) to[j * PANEL] = words[j];
        else if (j < 4) to[j * PANEL] = (words[j] & low) | (words[j + 4] & low) << 4;
        if (bits == 5) high[0] |= (words[j] >> 4 & one) << j;
        if (bits == 6) high[j / 4] |= (words[j] >> 4 & two) << j % 4 * 2;
    }
    for (int j = 4; j < bits && bits < 8; j++) to[j * PANEL] = high[j - 4];
}

/* puts the scales of a block into those of a panel; returns whether they are finite */
INLINE int put_scales(int kind, const uint8_t *block, uint8_t *place, int row) {
    uint16_t wide[2] = {0};
    memcpy(wide, kind == Q6_K ? block + 208 : block, has_least(kind) ? 4 : 2);
    memcpy(place + 2 * row, wide, 2);
    if (has_least(kind)) memcpy(place + 2 * (PANEL + row), wide + 1, 2);
    if (kind == Q6_K)
        for (int i = 0; i < 16; i++) place[2 * PANEL + i * PANEL + row] = block[192 + i];
    if (kind == Q4_K || kind == Q5_K)
        for (int i = 0; i < 8; i++) { /* of 6 bits: the first four whole, of the others 2 bits lie above those */
            const uint8_t *at = block + 4 + i, above = 6;
            place[(4 + i) * PANEL + row] = i < 4 ? at[0] & 63 : (at[4] & 15) | at[-4] >> above << 4;
            place[(12 + i) * PANEL + row] = i < 4 ? at[4] & 63 : at[4] >> 4 | at[0] >> above << 4;
        }
    return (wide[0] & 0x7c00) != 0x7c00 && (wide[1] & 0x7c00) != 0x7c00;
}

INLINE int put_number(int kind, const uint8_t *entry, uint8_t *place) {
    int size = bytes_of(kind);
    uint32_t bits = 0, infinite = kind == F16 ? 0x7c00 : kind == BF16 ? 0x7f80 : 0x7f800000;
    memcpy(&bits, entry, size);
    memcpy(place, entry, size);
    return (bits & infinite) != infinite;
}

typedef struct {
    const uint8_t *rows;  /* of a file */
    const int64_t *order; /* (out) which of them is where, or NULL */
    uint8_t *panels;
    int64_t out, in;
    atomic_int *faults;
    int kind;
} Packing;

/* a panel; rows after the last are zeros */
INLINE void pack_kind(int kind, const Packing *one, int64_t panel) {
    int64_t entries = entries_of(kind), size = bytes_of(kind), blocks = one->in / entries, per = entries / SLICE;
    int64_t of_panel = bytes_of_panel(kind, one->in), rows = one->out - panel * PANEL;
    uint8_t *to = one->panels + panel * of_panel, codes[SLICE];
    const uint8_t *from[PANEL];
    int fine = 1;
    if (rows < PANEL) memset(to, 0, of_panel);
    else rows = PANEL;
    for (int r = 0; r < rows; r++) {
        int64_t at = panel * PANEL + r;
        from[r] = one->rows + (one->order ? one->order[at] : at) * blocks * size;
    }
    for (int64_t b = 0; b < blocks; b++)
        for (int r = 0; r < rows; r++) {
            const uint8_t *block = from[r] + b * size;
            if (!bits_of(kind)) {
                fine &= put_number(kind, block, to + (b * PANEL + r) * size);
                continue;
            }
            for (int g = 0; g < per; g++) {
                codes_of(kind, block, g, codes);
                put_codes(kind, codes, to + codes_place(kind, one->in, b * per + g), r);
            }
            fine &= put_scales(kind, block, to + scales_place(kind, b * per), r);
        }
    if (!fine) atomic_store(one->faults, 1);
}

/* ---- from panels to values */

/* of column k of a slice */
INLINE int code_at(int kind, const uint8_t *codes, int row, int64_t k) {
    int bits = bits_of(kind), j = k / 4;
    const uint8_t *at = codes + row * 4 + k % 4;
    if (bits == 8) return (int8_t)at[64 * j];
    int low = j < 4 ? at[64 * j] & 15 : at[64 * (j - 4)] >> 4;
    if (bits == 5) low |= (at[256] >> j & 1) << 4;
    if (bits == 6) low |= (at[j < 4 ? 256 : 320] >> j % 4 * 2 & 3) << 4;
    return kind == IQ4_NL ? NONLINEAR[low] : low + offset_of(kind);
}

INLINE float number_at(int kind, const uint8_t *place) {
    float number;
    uint16_t narrow;
    memcpy(&number, place, kind == F32 ? 4 : 2);
    if (kind == F32) return number;
    memcpy(&narrow, place, 2);
    return kind == F16 ? half_value(narrow) : brain_value(narrow);
}

/* values of a row */
INLINE void unpack_kind(int kind, const Matrix *matrix, int64_t id, float *values) {
    const uint8_t *panel = (const uint8_t *)matrix->weights + id / PANEL * bytes_of_panel(kind, matrix->in);
    const uint8_t *scales;
    int64_t entries = entries_of(kind);
    int row = id % PANEL;
    for (int64_t k = 0; k < matrix->in; k++) {
        if (!bits_of(kind)) {
            values[k] = number_at(kind, panel + (k * PANEL + row) * bytes_of(kind));
            continue;
        }
        scales = panel + scales_place(kind, k / SLICE);
        float scale = number_at(F16, scales + 2 * row), least = 0;
        if (has_least(kind)) least = number_at(F16, scales + 2 * (PANEL + row));
        if (kind == Q6_K) scale *= (int8_t)scales[(2 + k % 256 / 16) * PANEL + row];
        if (entries == 256 && has_least(kind)) {
            scale *= scales[(4 + k % 256 / SLICE) * PANEL + row];
            least *= -(float)scales[(12 + k % 256 / SLICE) * PANEL + row];
        }
        values[k] = scale * code_at(kind, panel + codes_place(kind, matrix->in, k / SLICE), row, k % SLICE) + least;
    }
}

#define EACH_KIND(DO) DO(F32) DO(F16) DO(BF16) DO(Q4_0) DO(Q4_1) DO(Q5_0) DO(Q5_1) DO(Q8_0) DO(IQ4_NL) DO(Q4_K) \
    DO(Q5_K) DO(Q6_K)

static void pack_panel(const void *job, int64_t panel) {
    const Packing *one = job;
    switch (one->kind) {
#define PACK(kind) case kind: pack_kind(kind, one, panel); break;
        EACH_KIND(PACK)
    }
}

/* bytes of a matrix in panels, 0 for a kind that has none */
EXPORT int64_t packed_bytes(int kind, int64_t out, int64_t in) {
    switch (kind) {
#define SIZE(kind) case kind: return in % entries_of(kind) ? 0 : (out + PANEL - 1) / PANEL * bytes_of_panel(kind, in);
        EACH_KIND(SIZE)
        default: return 0;
    }
}

/* rows of a file -> panels; returns whether all scales, or numbers, are finite */
EXPORT int pack_rows(int kind, const uint8_t *rows, const int64_t *order, int64_t out, int64_t in, uint8_t *panels,
                     int threads) {
    atomic_int faults = 0;
    Packing one = {rows, order, panels, out, in, &faults, kind};
    run(pack_panel, &one, (out + PANEL - 1) / PANEL, threads);
    return !atomic_load(&faults);
}

/* values (count, in) of some rows of a matrix in panels */
EXPORT void unpack_rows(const Matrix *matrix, const int64_t *ids, int64_t count, float *values) {
    for (int64_t i = 0; i < count; i++)
        switch (matrix->kind) {
#define UNPACK(kind) case kind: unpack_kind(kind, matrix, ids[i], values + i * matrix->in); break;
            EACH_KIND(UNPACK)
        }
}
