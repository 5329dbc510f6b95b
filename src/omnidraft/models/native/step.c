/* Forward pass of a decoder-only transformer with weights of 4 to 8 bits and 16-bit keys and values.

   A pass over a few tokens takes as long as reading the weights once.  Every row of a pass is computed by the same
   operations in the same order whatever rows are beside it: tokens verified together get the logits, bit by bit, that
   they get one by one.  Inputs of matrices with one scale a row are rounded to integers of up to 16 bits, as many as
   32-bit sums hold, so that products are exact and large entries of an input cost the others little; those of matrices
   in blocks (kernels.h) to 8 bits with a scale for 16 of them. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "system.h"
#include "threads.h"
#include "vectors.h"
#include "blocks.h"
#include "kernels.h"

#define WIDTH 32  /* a chunk has a multiple of it columns, the last ones zeros where the matrix has fewer */
#define ROWS 64   /* rounded inputs that stay in the processor's cache while a matrix is read */
#define AHEAD 2048 /* bytes: the processor itself fetches no further than to the end of a page */
#define MOST 64 /* rows of weights whose sums are kept while chunks are read */
#define SHARE_BYTES 65536 /* bytes of weights in a share of a job, about */
#define CAPPED 4096 /* entries of a share of logits */
#define MATRICES 3 /* of a group, at most */

typedef struct {
    Matrix matrix[MATRICES]; /* one below the other, each of a kind of its own */
    int64_t count, out; /* of matrices; of their rows */
} Group; /* matrices with the same inputs */

typedef struct {
    Group qkv, output, gate_up, down;
    const float *before_attention, *before_mlp; /* weights of norms of what is read, or NULL */
    const float *after_attention, *after_mlp;   /* and of what is added to it, or NULL */
    const float *query_norm, *key_norm;         /* (size), or all heads' where these have one norm; or NULL */
    int64_t window;                             /* positions that a token attends to, 0 for all */
    int64_t rotated, angles;                    /* entries of a head that are rotated; the first column of their angles */
} Layer;

enum { OF_EACH, OF_ALL, ROTATED }; /* how heads are normalized: each, all together, each after its rotation */

typedef struct {
    int64_t layers, heads, key_heads, size, columns; /* the last of the table of angles */
    int64_t head_norm, centered;                     /* norms of what is read take away the mean first */
    int64_t parallel; /* attention and MLP read the same; an MLP's norm is then that of the attention */
    int64_t gelu;     /* the MLP's gate is a GELU, by the hyperbolic tangent, and no SiLU */
    int64_t tempered; /* queries are multiplied by the last column of angles */
    float epsilon, attention_scale, score_cap; /* no cap is 0 */
} Shape;

enum { DONE, NO_MEMORY }; /* what the entry points return */

#include "attention.h"
enum { AS_IS, NORMALIZED, CENTERED, GATED_SILU, GATED_GELU };

/* ---- sums of integer products */

#if defined(__AVX512BW__) && !defined(PLAIN)
typedef __m512i Sums;
#define STEP 32
#define ZERO _mm512_setzero_si512()
#define WIDEN(w) _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)(w)))
#ifdef __AVX512VNNI__
#define ADD(sums, w, x) _mm512_dpwssd_epi32(sums, w, _mm512_loadu_si512(x))
#else
#define ADD(sums, w, x) _mm512_add_epi32(sums, _mm512_madd_epi16(w, _mm512_loadu_si512(x)))
#endif
#define TOTAL(sums) _mm512_reduce_add_epi32(sums)
#elif defined(__AVX2__) && !defined(PLAIN)
typedef __m256i Sums;
#define STEP 16
#define ZERO _mm256_setzero_si256()
#define WIDEN(w) _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(w)))
#define ADD(sums, w, x) _mm256_add_epi32(sums, _mm256_madd_epi16(w, _mm256_loadu_si256((const void *)(x))))
INLINE int32_t TOTAL(__m256i sums) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}
#else
typedef struct { int16_t at[WIDTH]; } Widened;
typedef int32_t Sums;
#define STEP WIDTH
#define ZERO 0
INLINE Widened WIDEN(const int8_t *w) {
    Widened wide;
    for (int i = 0; i < WIDTH; i++) wide.at[i] = w[i];
    return wide;
}
INLINE int32_t ADD(int32_t sum, Widened w, const int16_t *x) {
    for (int i = 0; i < WIDTH; i++) sum += (int32_t)w.at[i] * x[i];
    return sum;
}
#define TOTAL(sum) (sum)
#endif

/* adds the products of a chunk of a row of weights and of `rows` rounded inputs; `rows` is a constant where this is
   inlined */
INLINE void products(const int8_t *w, const int16_t *x, int64_t width, int rows, int32_t *result) {
    Sums sums[8];
    for (int m = 0; m < rows; m++) sums[m] = ZERO;
    for (int64_t k = 0; k < width; k += WIDTH) {
        __builtin_prefetch(w + k + AHEAD);
        for (int64_t i = k; i < k + WIDTH; i += STEP) {
            __auto_type wide = WIDEN(w + i);
            for (int m = 0; m < rows; m++) sums[m] = ADD(sums[m], wide, x + m * width + i);
        }
    }
    for (int m = 0; m < rows; m++) result[m] += TOTAL(sums[m]);
}

/* the inputs of a group, `stride` values, those after `count` zeros; returns the size of the largest, which is NaN or
   infinite where one is; `kind` is a constant where this is inlined */
INLINE float prepared(const float *x, int64_t count, int64_t stride, int kind, const float *norm, float epsilon,
                      float *values) {
    float factor = kind == NORMALIZED ? normalizer(x, count, epsilon) : 1, mean = 0;
    if (kind == CENTERED) mean = mean_of(x, count), factor = centered_normalizer(x, mean, count, epsilon);
    Whole largest = {0};
    for (int64_t k = 0; k < stride; k += SPAN) { /* sizes of floats are in the order of their bits */
        Floats value = floats_within(x, k, count);
        if (kind == NORMALIZED) value = value * factor * floats_within(norm, k, count);
        if (kind == CENTERED) value = (value - mean) * factor * floats_within(norm, k, count);
        if (kind == GATED_SILU || kind == GATED_GELU) {
            Floats of = value;
            if (kind == GATED_GELU) of = value * (1.5957691216f + 0.0713548163f * value * value);
            Floats power = exponential(choose(of > -88, -of, all(88)));
            value = value / (1 + power) * floats_within(x + count, k, count);
        }
        memcpy(values + k, &value, sizeof value);
        Whole size = (Whole)value & INT32_MAX, more = size > largest;
        largest = (size & more) | (largest & ~more);
    }
    union { int32_t bits; float value; } most = {0};
    for (int i = 0; i < SPAN; i++) most.bits = largest[i] > most.bits ? largest[i] : most.bits;
    return most.value;
}

INLINE Whole nearest(Floats values) {
    return __builtin_convertvector((values + 12582912) - 12582912, Whole);
}

/* values as integers, whose chunks lie `apart`; returns their scale, NaN where the largest is no number */
static float rounded(const float *values, float most, int64_t chunks, int64_t width, int16_t *result, int64_t apart) {
    int64_t limit = INT32_MAX / (127 * chunks * width);
    if (limit > INT16_MAX) limit = INT16_MAX;
    /* of smaller ones no factor is finite, and products are nothing beside an epsilon: they count as zeros */
    float inverse = most >= 1e-33f && most < INFINITY ? limit / most : 0;
    for (int64_t k = 0; k < chunks * width && inverse == 0; k += width)
        memset(result + k / width * apart, 0, width * sizeof *result);
    for (int64_t k = 0; k < chunks * width && inverse > 0; k += SPAN) {
        Short narrow = __builtin_convertvector(nearest(floats_at(values + k) * inverse), Short);
        memcpy(result + k / width * apart + k % width, &narrow, sizeof narrow);
    }
    return most < INFINITY ? most / limit : NAN;
}

typedef struct {
    const Group *group;
    const float *x, *norm;
    float *values, *scales, *y;
    int16_t *integers; /* for a group with ROWS8, NULL where there are none */
    Piece *pieces;     /* for those of codes */
    int64_t stride, rows, share[MATRICES], shares[MATRICES]; /* of each matrix rows or panels in a share, and shares */
    float epsilon;
    int kind, adds;
} Projection;

static int64_t entries_in(int kind, int64_t in) { return kind == GATED_SILU || kind == GATED_GELU ? 2 * in : in; }

static void round_row(const void *job, int64_t m) {
    const Projection *one = job;
    int64_t in = one->group->matrix->in, rows = one->rows;
    const float *x = one->x + m * entries_in(one->kind, in);
    float *values = one->values + m * one->stride, most = 0;
    switch (one->kind) {
#define KIND(kind) case kind: most = prepared(x, in, one->stride, kind, one->norm, one->epsilon, values); break;
        KIND(AS_IS) KIND(NORMALIZED) KIND(CENTERED) KIND(GATED_SILU) KIND(GATED_GELU)
    }
    if (one->integers) {
        const Matrix *matrix = one->group->matrix;
        while (matrix->kind != ROWS8) matrix++; /* all of that kind take the same */
        int64_t width = matrix->width;
        one->scales[m] = rounded(values, most, matrix->chunks, width, one->integers + m * width, rows * width);
    }
    for (int64_t g = 0; one->pieces && g < in / SLICE; g++) one->pieces[g * rows + m] = piece_of(values + g * SLICE);
}

/* where the result of an input and a row of a matrix is */
INLINE float *result_at(const Projection *one, int64_t number, int64_t m, int64_t o) {
    for (int64_t i = 0; i < number; i++) o += one->group->matrix[i].out;
    return one->y + m * one->group->out + o;
}

INLINE void put_result(const Projection *one, const Matrix *matrix, float value, int64_t o, float *y) {
    if (matrix->bias) value += matrix->bias[o];
    *y = one->adds ? *y + value : value;
}

/* a share of a matrix times inputs first..first + rows; a chunk of these stays in the innermost cache meanwhile */
INLINE void multiply_inputs(const Projection *one, int64_t number, int64_t begin, int64_t end, int64_t first,
                            int rows) {
    const Matrix *matrix = one->group->matrix + number;
    int64_t out = matrix->out, width = matrix->width;
    const int8_t *weights = matrix->weights;
    int32_t sums[MOST][8];
    for (int64_t from = begin; from < end; from += MOST) {
        int64_t count = end - from < MOST ? end - from : MOST;
        memset(sums, 0, count * sizeof *sums);
        for (int64_t chunk = 0; chunk < matrix->chunks; chunk++)
            for (int64_t o = 0; o < count; o++)
                products(weights + (chunk * out + from + o) * width,
                         one->integers + (chunk * one->rows + first) * width, width, rows, sums[o]);
        for (int64_t o = from; o < from + count; o++)
            for (int m = 0; m < rows; m++) {
                float value = (float)sums[o - from][m] * (matrix->scales[o] * one->scales[first + m]);
                put_result(one, matrix, value, o, result_at(one, number, first + m, o));
            }
    }
}

static void multiply_rows(const Projection *one, int64_t number, int64_t begin, int64_t end) {
    for (int64_t first = 0; first < one->rows; first += 8) /* 8 inputs and the share stay in the inner caches */
        switch (one->rows - first) {
#define CASE(n) case n: multiply_inputs(one, number, begin, end, first, n); break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7)
            default: multiply_inputs(one, number, begin, end, first, 8);
        }
}

static void multiply_panels(const Projection *one, int64_t number, int64_t begin, int64_t end) {
    const Matrix *matrix = one->group->matrix + number;
    int64_t turns = (one->rows + TOGETHER - 1) / TOGETHER;
    float result[TOGETHER][PANEL];
    for (int64_t panel = begin; panel < end; panel++)
        for (int64_t turn = 0; turn < turns; turn++) { /* as many inputs in each: 9 as 5 and 4 */
            int64_t first = one->rows * turn / turns, o = panel * PANEL;
            int rows = one->rows * (turn + 1) / turns - first, count = matrix->out - o < PANEL ? matrix->out - o : PANEL;
            const Piece *pieces = one->pieces ? one->pieces + first : NULL; /* numbers take values alone */
            multiply_panel(matrix, panel, rows, pieces, one->rows, one->values + first * one->stride, one->stride,
                           result);
            for (int m = 0; m < rows; m++) {
                float *y = result_at(one, number, first + m, o);
                for (int i = 0; i < count; i++) put_result(one, matrix, result[m][i], o + i, y + i);
            }
        }
}

static void multiply_share(const void *job, int64_t share) {
    const Projection *one = job;
    int64_t number = 0;
    for (; share >= one->shares[number]; number++) share -= one->shares[number];
    const Matrix *matrix = one->group->matrix + number;
    int64_t rows = matrix->kind == ROWS8 ? matrix->out : (matrix->out + PANEL - 1) / PANEL;
    int64_t begin = share * one->share[number], end = begin + one->share[number];
    if (end > rows) end = rows;
    (matrix->kind == ROWS8 ? multiply_rows : multiply_panels)(one, number, begin, end);
}

typedef struct {
    float *values, *scales;
    int16_t *integers;
    Piece *pieces;
} Rounding; /* room for inputs of a group */

/* values that an input of a group takes, with those of whole chunks */
static int64_t stride_of(const Group *group) {
    int64_t stride = (group->matrix->in + LANES - 1) / LANES * LANES;
    for (const Matrix *one = group->matrix; one < group->matrix + group->count; one++)
        if (one->kind == ROWS8 && one->chunks * one->width > stride) stride = one->chunks * one->width;
    return stride;
}

/* y (rows, out) = input (rows, in) times the group, added to y where `adds`; gated inputs are (rows, 2 in) */
static void project(const Group *group, const float *x, int64_t rows, int kind, const float *norm, float epsilon,
                    int adds, float *y, int threads, const Rounding *room) {
    int64_t in = group->matrix->in, shares = 0;
    Projection one = {
        .group = group, .norm = norm, .epsilon = epsilon, .kind = kind, .adds = adds,
        .values = room->values, .scales = room->scales, .stride = stride_of(group),
    };
    for (int64_t i = 0; i < group->count; i++) {
        const Matrix *matrix = group->matrix + i;
        int64_t units = matrix->out, size = matrix->chunks * matrix->width;
        if (matrix->kind == ROWS8) {
            one.integers = room->integers;
        } else {
            units = (matrix->out + PANEL - 1) / PANEL;
            size = bytes_of_panel(matrix->kind, in);
            if (bits_of(matrix->kind)) one.pieces = room->pieces;
        }
        int64_t count = threads * (units * size / (threads * SHARE_BYTES) + 1); /* as many for each thread */
        one.share[i] = (units + count - 1) / count;
        one.shares[i] = (units + one.share[i] - 1) / one.share[i];
        shares += one.shares[i];
    }
    for (int64_t first = 0; first < rows; first += ROWS) {
        one.rows = rows - first < ROWS ? rows - first : ROWS;
        one.x = x + first * entries_in(kind, in);
        one.y = y + first * group->out;
        run(round_row, &one, one.rows, one.rows > 4 ? threads : 1);
        run(multiply_share, &one, shares, threads);
    }
}

static int norm_kind(const float *norm, int64_t centered) { return !norm ? AS_IS : centered ? CENTERED : NORMALIZED; }

/* ---- what layers have beside matrices */

typedef struct {
    const float *from, *norm;
    float *x;
    int64_t count;
    float epsilon, cap;
} Rows;

static void add_row(const void *job, int64_t m) {
    const Rows *one = job;
    const float *from = one->from + m * one->count;
    float *x = one->x + m * one->count, factor = normalizer(from, one->count, one->epsilon);
    for (int64_t k = 0; k < one->count; k++) x[k] += from[k] * factor * one->norm[k];
}

/* x (rows, in) += what is made of `from` by a matrix, normalized where there are weights, for which `room` has rows */
static void add(const Group *group, const float *from, int64_t rows, int kind, const float *norm, float epsilon,
                float *x, float *made, int threads, const Rounding *room) {
    project(group, from, rows, kind, NULL, 0, !norm, norm ? made : x, threads, room);
    Rows one = {.from = made, .norm = norm, .x = x, .count = group->out, .epsilon = epsilon};
    if (norm) run(add_row, &one, rows, rows > 4 ? threads : 1);
}

static void cap_share(const void *job, int64_t share) {
    const Rows *one = job;
    int64_t end = (share + 1) * CAPPED < one->count ? (share + 1) * CAPPED : one->count;
    for (int64_t k = share * CAPPED; k < end; k += SPAN) {
        Floats value = capped(floats_within(one->x, k, end), one->cap);
        memcpy(one->x + k, &value, (end - k < SPAN ? end - k : SPAN) * sizeof *one->x);
    }
}

/* ---- entry points */

/* the offset of so many bytes in memory that a call takes at once */
static int64_t place(int64_t *used, int64_t bytes) {
    int64_t offset = *used;
    *used += (bytes + 63) / 64 * 64;
    return offset;
}

/* room for inputs of a group of up to `stride` values, in memory that is there from a number of bytes on */
static Rounding room_at(char *memory, int64_t *used, int64_t rows, int64_t stride) {
    int64_t held = rows < ROWS ? rows : ROWS;
    int64_t values = place(used, held * stride * sizeof(float)), scales = place(used, held * sizeof(float));
    int64_t integers = place(used, held * stride * sizeof(int16_t));
    int64_t pieces = place(used, held * (stride / SLICE) * sizeof(Piece));
    if (!memory) return (Rounding){0}; /* the size alone is asked for */
    return (Rounding){
        (float *)(memory + values), (float *)(memory + scales), (int16_t *)(memory + integers),
        (Piece *)(memory + pieces),
    };
}

/* sizes and constants by which callers and this file must agree, as many as there is room for; returns their number */
EXPORT int layout(int64_t *sizes, int room) {
    const int64_t values[] = {sizeof(Group), sizeof(Layer), sizeof(Shape), sizeof(Cache), WIDTH, LANES, BLOCK, PANEL};
    int count = sizeof values / sizeof *values;
    for (int i = 0; i < count && i < room; i++) sizes[i] = values[i];
    return count;
}

/* x (rows, hidden), embeddings of the tokens after those in the cache, becomes the output of the last layer; where
   they are `apart`, each row has a cache of its own, of which several may be of one text in its order.  Returns DONE, or
   NO_MEMORY before anything has changed */
EXPORT int read_tokens(const Layer *layers, const Shape *shape, const Cache *caches, int apart, float *x, int64_t rows,
                       int threads) {
    int64_t used = 0, stride = 0, tasks = 0;
    if (rows < 1) return DONE; /* of no bytes, NULL would be no failure */
    Run *runs = malloc(rows * sizeof *runs);
    if (!runs) return NO_MEMORY;
    Attention one = {.shape = shape, .runs = runs, .rows = rows, .threads = threads};
    one.count = find_runs(shape, caches, apart, rows, runs);
    for (const Layer *layer = layers; layer < layers + shape->layers; layer++) {
        const Group *all[] = {&layer->qkv, &layer->output, &layer->gate_up, &layer->down};
        for (int i = 0; i < 4; i++) stride = stride_of(all[i]) > stride ? stride_of(all[i]) : stride;
    }
    room_at(NULL, &used, rows, stride);
    int64_t qkv = place(&used, rows * layers->qkv.out * sizeof(float));
    int64_t seen = place(&used, rows * layers->output.matrix->in * sizeof(float));
    int64_t inner = place(&used, rows * layers->gate_up.out * sizeof(float));
    int after = layers->after_attention || layers->after_mlp;
    int64_t added = place(&used, after ? rows * layers->output.out * sizeof(float) : 0);
    int64_t queries = place(&used, rows * shape->heads * shape->size * sizeof(float)), results = used;
    for (const Run *run = runs; run < runs + one.count; run++) {
        int64_t tiles = tiles_of(shape, run->rows).tiles;
        tasks += shape->key_heads * (run->divided ? run->slots : tiles);
        place(&used, run->rows * shape->heads * run->slots * result_floats(shape) * sizeof(float));
    }
    int64_t listed = place(&used, tasks * sizeof(Task));
    char *memory = aligned_bytes(used);
    if (!memory) {
        free(runs);
        return NO_MEMORY;
    }
    one.qkv = (float *)(memory + qkv);
    one.seen = (float *)(memory + seen);
    one.tasks = (Task *)(memory + listed);
    for (Run *run = runs; run < runs + one.count; run++) {
        run->queries = (float *)(memory + queries) + run->first * shape->heads * shape->size;
        run->results = (float *)(memory + results);
        place(&results, run->rows * shape->heads * run->slots * result_floats(shape) * sizeof(float));
    }
    used = 0;
    Rounding room = room_at(memory, &used, rows, stride);
    float *gated = (float *)(memory + inner), *made = (float *)(memory + added), epsilon = shape->epsilon;
    int gate = shape->gelu ? GATED_GELU : GATED_SILU;
    for (const Layer *layer = layers; layer < layers + shape->layers; layer++) {
        int kind = norm_kind(layer->before_attention, shape->centered);
        int inner_kind = norm_kind(layer->before_mlp, shape->centered);
        project(&layer->qkv, x, rows, kind, layer->before_attention, epsilon, 0, one.qkv, threads, &room);
        attention(&one, layer, layer - layers);
        if (shape->parallel)
            project(&layer->gate_up, x, rows, inner_kind, layer->before_mlp, epsilon, 0, gated, threads, &room);
        add(&layer->output, one.seen, rows, AS_IS, layer->after_attention, epsilon, x, made, threads, &room);
        if (!shape->parallel)
            project(&layer->gate_up, x, rows, inner_kind, layer->before_mlp, epsilon, 0, gated, threads, &room);
        add(&layer->down, gated, rows, gate, layer->after_mlp, epsilon, x, made, threads, &room);
    }
    free_aligned(memory);
    free(runs);
    return DONE;
}

/* y (rows, out) = x (rows, in), normalized where there are weights of a norm, times the group, bent by a cap that is not 0;
   returns DONE, or NO_MEMORY */
EXPORT int apply_group(const Group *group, const float *norm, int centered, float epsilon, float cap, const float *x,
                       int64_t rows, float *y, int threads) {
    int64_t stride = stride_of(group), used = 0;
    if (rows < 1) return DONE;
    room_at(NULL, &used, rows, stride);
    char *memory = aligned_bytes(used);
    if (!memory) return NO_MEMORY;
    used = 0;
    Rounding room = room_at(memory, &used, rows, stride);
    project(group, x, rows, norm_kind(norm, centered), norm, epsilon, 0, y, threads, &room);
    Rows one = {.x = y, .count = rows * group->out, .cap = cap};
    if (cap) run(cap_share, &one, (one.count + CAPPED - 1) / CAPPED, threads);
    free_aligned(memory);
    return DONE;
}
