/* Products of panels (blocks.h) and rows of inputs.

   Codes are unpacked once for all rows of a pass.  Inputs are whole numbers with one scale for 16 of them, so that the
   products of a slice are exact; these are added in the order of the slices, each row of the matrix in a lane of its
   own.  So a result has the same bits on every processor, and whatever rows are beside it. */

#include <stdint.h>
#include <string.h>

#define LARGEST 127 /* whole number of an input */
#define TOGETHER 16 /* rows of inputs, at most, for which codes are unpacked */
#define FETCHED 8192 /* bytes ahead: with less memory is waited for, with more the innermost cache holds less else */

/* a slice of an input, each half of it with a scale */
typedef struct {
    int32_t x[SLICE / 4]; /* 4 columns each, of 8 bits */
    float scale[2], sum;  /* of an entry, and of all entries */
    int32_t less[2];      /* minus the sum of the entries of each half */
    int32_t room[3];      /* a piece is in one line of a cache */
} Piece;

#include "codes.h"

/* ---- a slice */

INLINE int is_signed(int kind) { return kind == Q8_0 || kind == IQ4_NL; }

/* values as whole numbers; the scale of a half with a value that is NaN or infinite is NaN */
INLINE Piece piece_of(const float *values) {
    Piece piece = {0};
    for (int half = 0; half < 2; half++) {
        Counts largest = count_of(0), all = count_of(0);
        for (int k = 16 * half; k < 16 * half + 16; k += SIDE) largest = larger(largest, sizes_of(reals_in(values + k)));
        union { int32_t bits; float value; } most = {largest_in(largest)};
        float inverse = most.value > 1e-30f && most.value < INFINITY ? LARGEST / most.value : 0;
        for (int k = 16 * half; k < 16 * half + 16; k += SIDE) {
            Counts whole = nearest_to(product(reals_in(values + k), real_of(inverse)));
            keep_bytes((int8_t *)piece.x + k, whole);
            all = added(all, whole);
        }
        piece.scale[half] = most.value < INFINITY ? most.value / LARGEST : NAN;
        piece.less[half] = -total_in(all);
        piece.sum -= piece.scale[half] * piece.less[half];
    }
    return piece;
}

/* adds the products of 16 columns; sums of pairs have 16 bits, which as many products of codes fit in */
INLINE Counts dots(int kind, Counts counts, const Codes *codes, const int32_t *x) {
#ifdef DOTS
    (void)kind;
    counts = dots_of(counts, codes, x);
#else
    int most = is_signed(kind) ? 1 : bits_of(kind) == 6 ? 2 : 4;
    for (int j = 0; j < 4; j += most) {
        Pairs pairs = is_signed(kind) ? signed_pairs(codes[j], x[j]) : PAIRS_OF(codes[j], x[j]);
        for (int i = j + 1; i < j + most; i++) pairs = PAIRS_ADDED(pairs, PAIRS_OF(codes[i], x[i]));
        counts = PAIRS_COUNTED(counts, pairs);
    }
#endif
    return counts;
}

INLINE void unpack(int kind, const uint8_t *at, Codes *codes) {
    int bits = bits_of(kind);
    for (int j = 0; j < 8 && bits == 8; j++) codes[j] = codes_in(at + 64 * j);
    for (int j = 0; j < 4 && bits < 8; j++) {
        Codes both = codes_in(at + 64 * j);
        codes[j] = masked(both, code_of(15));
        codes[j + 4] = masked(lowered(both, 4), code_of(15));
    }
    for (int j = 0; j < 8 && (bits == 5 || bits == 6); j++) { /* the bits above the low 4 are moved to where they are */
        Codes high = codes_in(at + (bits == 6 && j > 3 ? 320 : 256));
        int up = bits == 6 ? 4 - j % 4 * 2 : 4 - j;
        high = masked(up > 0 ? raised(high, up) : lowered(high, -up), code_of(bits == 6 ? 48 : 16));
        codes[j] = joined(codes[j], high);
    }
    for (int j = 0; j < 8 && kind == IQ4_NL; j++) codes[j] = looked_up(codes[j]);
#ifdef UNSIGNED
    for (int j = 0; j < 8 && is_signed(kind); j++) codes[j] ^= code_of(-128);
#endif
}

typedef struct { Reals scale[2], least; } Scales; /* of a slice, or of its halves */

INLINE Scales scales_at(int kind, const uint8_t *at, int64_t g, int row) {
    int64_t of = entries_of(kind) / SLICE, in = g % of;
    const uint8_t *block = at + g / of * scale_bytes(kind);
    Scales found = {{halves_in(block + 2 * row)}, real_of(0)};
    if (has_least(kind)) found.least = halves_in(block + 2 * (PANEL + row));
    if (kind == Q6_K) {
        found.scale[1] = product(found.scale[0], signed_in(block + (3 + 2 * in) * PANEL + row));
        found.scale[0] = product(found.scale[0], signed_in(block + (2 + 2 * in) * PANEL + row));
    }
    if (kind == Q4_K || kind == Q5_K) {
        found.scale[0] = product(found.scale[0], unsigned_in(block + (4 + in) * PANEL + row));
        found.least = product(found.least, product(unsigned_in(block + (12 + in) * PANEL + row), real_of(-1)));
    }
    return found;
}

/* what the sums of products of half a slice begin with, as codes count from a power of 2 */
INLINE Counts start_of(int kind, const Piece *piece, int half) {
    int offset = kind == Q4_0 ? 3 : kind == Q5_0 ? 4 : kind == Q6_K ? 5 : 0;
#ifdef UNSIGNED
    if (is_signed(kind)) offset = 7;
#endif
    return offset ? shifted(count_of(piece->less[half]), offset) : count_of(0);
}

/* the sums of products of half a slice, which are exact */
INLINE Reals half_products(int kind, const Codes *codes, const Piece *piece, int half) {
    return reals_of(dots(kind, start_of(kind, piece, half), codes + 4 * half, piece->x + 4 * half));
}

/* a sum with the products of a slice, those of its first half with their scale */
INLINE Reals with_halves(int kind, Reals sum, Reals first, Reals second, const Scales *of, const Piece *piece) {
    Reals scale = real_of(piece->scale[1]);
    if (kind == Q6_K) {
        sum = sum_with(first, of->scale[0], sum);
        sum = sum_with(product(second, scale), of->scale[1], sum);
    } else sum = sum_with(sum_with(second, scale, first), of->scale[0], sum);
    return has_least(kind) ? sum_with(of->least, real_of(piece->sum), sum) : sum;
}

INLINE Reals with_slice(int kind, Reals sum, const Codes *codes, const Scales *of, const Piece *piece) {
    Reals first = product(half_products(kind, codes, piece, 0), real_of(piece->scale[0]));
    return with_halves(kind, sum, first, half_products(kind, codes, piece, 1), of, piece);
}

#ifdef MATRIX_DOTS
/* the same of two inputs */
INLINE void with_slices(int kind, Reals *sums[2], const Codes *pairs, const Scales *of, const Piece *pieces) {
    Counts halves[2][2];
    for (int half = 0; half < 2; half++) {
        for (int m = 0; m < 2; m++) halves[half][m] = start_of(kind, pieces + m, half);
        matrix_dots_of(halves[half], pairs + 4 * half, pieces[0].x + 4 * half, pieces[1].x + 4 * half);
    }
    for (int m = 0; m < 2; m++) {
        Reals first = product(reals_of(halves[0][m]), real_of(pieces[m].scale[0]));
        *sums[m] = with_halves(kind, *sums[m], first, reals_of(halves[1][m]), of, pieces + m);
    }
}
#endif

/* a panel times `rows` inputs, whose slices lie `apart`; `kind` and `rows` are constants where this is inlined */
INLINE void multiply_codes(int kind, int rows, const uint8_t *panel, int64_t in, const Piece *pieces, int64_t apart,
                           float (*result)[PANEL]) {
    int64_t slices = in / SLICE, unit = unit_of(kind), bytes = scales_in(kind, unit) / unit + codes_in_slices(kind, 1);
    const uint8_t *ahead = panel + FETCHED;
    Reals sums[TOGETHER][SIDES];
    for (int m = 0; m < rows; m++)
        for (int s = 0; s < SIDES; s++) sums[m][s] = real_of(0);
    for (; slices > 0; slices -= unit) {
        int64_t count = slices < unit ? slices : unit;
        const uint8_t *scales = panel;
        panel += scales_in(kind, count);
        for (int64_t g = 0; g < count; g++, panel += codes_in_slices(kind, 1), pieces += apart, ahead += bytes) {
            for (int line = 0; line < bytes; line += 64) __builtin_prefetch(ahead + line);
            for (int s = 0; s < SIDES; s++) {
                Codes codes[8];
                unpack(kind, panel + 4 * SIDE * s, codes);
                Scales of = scales_at(kind, scales, g, SIDE * s);
                int m = 0;
#ifdef MATRIX_DOTS
                Codes pairs[8];
                if (rows > 1) pair_rows(codes, pairs);
                for (; m + 1 < rows; m += 2)
                    with_slices(kind, (Reals *[]){&sums[m][s], &sums[m + 1][s]}, pairs, &of, pieces + m);
#endif
                for (; m < rows; m++) sums[m][s] = with_slice(kind, sums[m][s], codes, &of, pieces + m);
            }
        }
    }
    for (int m = 0; m < rows; m++)
        for (int s = 0; s < SIDES; s++) keep_reals(result[m] + SIDE * s, sums[m][s]);
}

/* the same for a panel of numbers, and inputs (rows, apart) as they are */
INLINE void multiply_numbers(int kind, int rows, const uint8_t *panel, int64_t in, const float *x, int64_t apart,
                             float (*result)[PANEL]) {
    Reals sums[2][TOGETHER][SIDES]; /* two, as each sum waits for the one before */
    for (int m = 0; m < rows; m++)
        for (int s = 0; s < SIDES; s++) sums[0][m][s] = sums[1][m][s] = real_of(0);
    for (int64_t k = 0; k < in; k += 2)
        for (int odd = 0; odd < 2 && k + odd < in; odd++) {
            const uint8_t *at = panel + (k + odd) * PANEL * bytes_of(kind);
            __builtin_prefetch(at + FETCHED);
            for (int s = 0; s < SIDES; s++) {
                const void *place = at + SIDE * s * bytes_of(kind);
                Reals w = kind == F32 ? reals_in(place) : kind == F16 ? halves_in(place) : brains_in(place);
                for (int m = 0; m < rows; m++)
                    sums[odd][m][s] = sum_with(w, real_of(x[m * apart + k + odd]), sums[odd][m][s]);
            }
        }
    for (int m = 0; m < rows; m++)
        for (int s = 0; s < SIDES; s++)
            keep_reals(result[m] + SIDE * s, sum_with(sums[0][m][s], real_of(1), sums[1][m][s]));
}

/* ---- a function for each kind */

#define OF_ROWS(n, multiply, kind) case n: multiply(kind, n, panel, in, x, apart, result); break;
#if SIDE == 16 /* the sums of so many rows stay in registers */
#define FEW(multiply, kind) \
    OF_ROWS(1, multiply, kind) OF_ROWS(2, multiply, kind) OF_ROWS(3, multiply, kind) OF_ROWS(4, multiply, kind) \
    OF_ROWS(5, multiply, kind) OF_ROWS(6, multiply, kind) OF_ROWS(7, multiply, kind) OF_ROWS(8, multiply, kind)
#else
#define FEW(multiply, kind) OF_ROWS(1, multiply, kind)
#endif
#define EACH_NUMBER(multiply, kind) \
    switch (rows) { \
        FEW(multiply, kind) \
        default: multiply(kind, rows, panel, in, x, apart, result); \
    }
#define CODES(kind) \
    static void panel_##kind(int rows, const uint8_t *panel, int64_t in, const Piece *x, int64_t apart, \
                             float (*result)[PANEL]) { EACH_NUMBER(multiply_codes, kind) }
#define NUMBERS(kind) \
    static void panel_##kind(int rows, const uint8_t *panel, int64_t in, const float *x, int64_t apart, \
                             float (*result)[PANEL]) { EACH_NUMBER(multiply_numbers, kind) }
CODES(Q4_0) CODES(Q4_1) CODES(Q5_0) CODES(Q5_1) CODES(Q8_0) CODES(IQ4_NL) CODES(Q4_K) CODES(Q5_K) CODES(Q6_K)
NUMBERS(F32) NUMBERS(F16) NUMBERS(BF16)

/* the product of a panel and `rows` inputs, up to TOGETHER, in the form that the kind takes */
static void multiply_panel(const Matrix *matrix, int64_t panel, int rows, const Piece *pieces, int64_t apart,
                           const float *values, int64_t stride, float (*result)[PANEL]) {
    const uint8_t *at = (const uint8_t *)matrix->weights + panel * bytes_of_panel(matrix->kind, matrix->in);
    switch (matrix->kind) {
#define OF_CODES(kind) case kind: panel_##kind(rows, at, matrix->in, pieces, apart, result); break;
#define OF_NUMBERS(kind) case kind: panel_##kind(rows, at, matrix->in, values, stride, result); break;
        OF_CODES(Q4_0) OF_CODES(Q4_1) OF_CODES(Q5_0) OF_CODES(Q5_1) OF_CODES(Q8_0) OF_CODES(IQ4_NL) OF_CODES(Q4_K)
        OF_CODES(Q5_K) OF_CODES(Q6_K) OF_NUMBERS(F32) OF_NUMBERS(F16) OF_NUMBERS(BF16)
    }
}
