/* Forward pass of a decoder-only transformer with 8-bit weights and fp32 keys and values.

   A pass over a few tokens takes as long as reading the weights once.  Every row of a pass is computed by the same
   operations in the same order whatever rows are beside it: tokens verified together get the logits, bit by bit, that
   they get one by one.  Inputs of matrices are rounded to integers of up to 16 bits with one scale a row, as many bits
   as 32-bit sums hold, so that products are exact and large entries of an input cost the others little. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "threads.h"
#include "blocks.h"
#include "kernels.h"

#define LANES 16  /* partial sums, in an order that does not depend on the processor's vectors */
#ifndef SPAN      /* floats of a vector; the compiler keeps wider ones than the processor has in memory, which is slow */
#if defined(__AVX512F__)
#define SPAN 16
#elif defined(__AVX2__)
#define SPAN 8
#else
#define SPAN 4
#endif
#endif
#define PIECES (LANES / SPAN)
#define WIDTH 32  /* a chunk has a multiple of it columns, the last ones zeros where the matrix has fewer */
#define ROWS 64   /* rounded inputs that stay in the processor's cache while a matrix is read */
#define AHEAD 2048 /* bytes: the processor itself fetches no further than to the end of a page */
#define MANY 4  /* vectors of a result that are summed together */
#define MOST 64 /* rows of weights whose sums are kept while chunks are read */
#define PART 65536 /* bytes of weights in a share of a job, about */
#define PARTS 3 /* matrices that are multiplied with the same inputs */

typedef struct {
    Matrix part[PARTS]; /* one below the other, each of a kind of its own */
    int64_t parts, out; /* rows in all */
} Matrices;

typedef struct {
    Matrices qkv, output, gate_up, down;
    const float *before_attention, *before_mlp; /* weights of norms */
    const float *query_norm, *key_norm;         /* (size), or NULL */
    int64_t window;                             /* positions that a token attends to, 0 for all */
} Layer;

typedef struct {
    int64_t layers, heads, key_heads, size;
    float epsilon;
} Shape;

typedef struct {
    float *entries;      /* (layers, 2, key heads, capacity, size): keys in blocks of (size, LANES), and values */
    const float *angles; /* (capacity, size): cosines, then sines */
    int64_t capacity, length, threads; /* the capacity is a multiple of LANES */
} Cache;

enum { AS_IS, NORMALIZED, GATED };

/* ---- sums of integer products */

#if defined(__AVX512BW__) && !defined(PLAIN)
#include <immintrin.h>
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
#include <immintrin.h>
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

/* ---- elementwise parts */

typedef float Floats __attribute__((vector_size(4 * SPAN)));
typedef int32_t Whole __attribute__((vector_size(4 * SPAN)));
typedef int16_t Short __attribute__((vector_size(2 * SPAN)));

INLINE Floats floats_at(const float *x) {
    Floats floats;
    memcpy(&floats, x, sizeof floats);
    return floats;
}

/* entries k..k + SPAN of `count`, zeros beyond */
INLINE Floats floats_within(const float *x, int64_t k, int64_t count) {
    if (k + SPAN <= count) return floats_at(x + k);
    Floats floats = {0};
    if (k < count) memcpy(&floats, x + k, (count - k) * sizeof *x);
    return floats;
}

INLINE Floats choose(Whole which, Floats yes, Floats no) {
    return (Floats)(((Whole)yes & which) | ((Whole)no & ~which));
}

INLINE float total_of(const float *lanes) {
    float parts[LANES];
    memcpy(parts, lanes, sizeof parts);
    for (int half = LANES / 2; half; half /= 2) /* in pairs: one by one, each would wait for the one before */
        for (int i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
}

INLINE float sum_of_products(const float *a, const float *b, int64_t count) {
    Floats parts[PIECES] = {{0}};
    float sum = 0;
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES)
        for (int p = 0; p < PIECES; p++) parts[p] += floats_at(a + k + p * SPAN) * floats_at(b + k + p * SPAN);
    for (; k < count; k++) sum += a[k] * b[k];
    return sum + total_of((const float *)parts);
}

INLINE float normalizer(const float *x, int64_t count, float epsilon) {
    return 1 / sqrtf(sum_of_products(x, x, count) / count + epsilon);
}

/* e to the power of x, to 2 units in the last place */
INLINE Floats exponential(Floats x) {
    /* what is no number becomes one here: converting it to an integer is undefined */
    Floats bounded = choose(x > -87, choose(x < 88, x, (Floats){0} + 88), (Floats){0} - 87);
    Floats whole = (bounded * 1.44269504f + 12582912) - 12582912; /* nearest integer */
    Floats rest = bounded - whole * 0.693359375f + whole * 2.12194440e-4f;
    Floats value = 1.9875691500e-4f * rest + 1.3981999507e-3f;
    value = value * rest + 8.3334519073e-3f;
    value = value * rest + 4.1665795894e-2f;
    value = value * rest + 1.6666665459e-1f;
    value = value * rest + 5.0000001201e-1f;
    value = value * rest * rest + rest + 1;
    Floats power = (Floats)((__builtin_convertvector(whole, Whole) + 127) << 23);
    return choose(x == x, value * power, x);
}

/* the inputs of matrices, `stride` values, those after `count` zeros; returns the size of the largest, which is NaN or
   infinite where one is; `kind` is a constant where this is inlined */
INLINE float prepared(const float *x, int64_t count, int64_t stride, int kind, const float *norm, float epsilon,
                      float *values) {
    float factor = kind == NORMALIZED ? normalizer(x, count, epsilon) : 1;
    Whole largest = {0};
    for (int64_t k = 0; k < stride; k += SPAN) { /* sizes of floats are in the order of their bits */
        Floats value = floats_within(x, k, count);
        if (kind == NORMALIZED) value = value * factor * floats_within(norm, k, count);
        if (kind == GATED) value = value / (1 + exponential(-value)) * floats_within(x + count, k, count);
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
    float inverse = most > 0 && most < INFINITY ? limit / most : 0;
    for (int64_t k = 0; k < chunks * width; k += SPAN) {
        Short narrow = __builtin_convertvector(nearest(floats_at(values + k) * inverse), Short);
        memcpy(result + k / width * apart + k % width, &narrow, sizeof narrow);
    }
    return most < INFINITY ? most / limit : NAN;
}

typedef struct {
    const Matrices *matrices;
    const float *x, *norm;
    float *values, *scales, *y;
    int16_t *integers; /* for matrices of ROWS8, NULL where there are none */
    Piece *pieces;     /* for those of codes */
    int64_t stride, rows, share[PARTS], shares[PARTS]; /* of each matrix rows or panels in a share, and shares */
    float epsilon;
    int kind, adds;
} Projection;

static void round_row(const void *job, int64_t m) {
    const Projection *one = job;
    int64_t in = one->matrices->part->in, rows = one->rows;
    const float *x = one->x + m * (one->kind == GATED ? 2 * in : in);
    float *values = one->values + m * one->stride, most = 0;
    switch (one->kind) {
#define KIND(kind) case kind: most = prepared(x, in, one->stride, kind, one->norm, one->epsilon, values); break;
        KIND(AS_IS) KIND(NORMALIZED) KIND(GATED)
    }
    if (one->integers) {
        const Matrix *matrix = one->matrices->part;
        while (matrix->kind != ROWS8) matrix++; /* all of that kind take the same */
        int64_t width = matrix->width;
        one->scales[m] = rounded(values, most, matrix->chunks, width, one->integers + m * width, rows * width);
    }
    for (int64_t g = 0; one->pieces && g < in / GROUP; g++) one->pieces[g * rows + m] = piece_of(values + g * GROUP);
}

/* where the result of an input and a row of a matrix is */
INLINE float *result_at(const Projection *one, int64_t number, int64_t m, int64_t o) {
    for (int64_t i = 0; i < number; i++) o += one->matrices->part[i].out;
    return one->y + m * one->matrices->out + o;
}

INLINE void put_result(const Projection *one, const Matrix *matrix, float value, int64_t o, float *y) {
    if (matrix->bias) value += matrix->bias[o];
    *y = one->adds ? *y + value : value;
}

/* a share of a matrix times inputs first..first + rows; a chunk of these stays in the innermost cache meanwhile */
INLINE void multiply_inputs(const Projection *one, int64_t number, int64_t begin, int64_t end, int64_t first,
                            int rows) {
    const Matrix *matrix = one->matrices->part + number;
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
    const Matrix *matrix = one->matrices->part + number;
    int64_t turns = (one->rows + TOGETHER - 1) / TOGETHER;
    float result[TOGETHER][PANEL];
    for (int64_t panel = begin; panel < end; panel++)
        for (int64_t turn = 0; turn < turns; turn++) { /* as many inputs in each: 9 as 5 and 4 */
            int64_t first = one->rows * turn / turns, o = panel * PANEL;
            int rows = one->rows * (turn + 1) / turns - first, count = matrix->out - o < PANEL ? matrix->out - o : PANEL;
            multiply_panel(matrix, panel, rows, one->pieces + first, one->rows, one->values + first * one->stride,
                           one->stride, result);
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
    const Matrix *matrix = one->matrices->part + number;
    int64_t rows = matrix->kind == ROWS8 ? matrix->out : (matrix->out + PANEL - 1) / PANEL;
    int64_t begin = share * one->share[number], end = begin + one->share[number];
    if (end > rows) end = rows;
    (matrix->kind == ROWS8 ? multiply_rows : multiply_panels)(one, number, begin, end);
}

/* y (rows, out) = input (rows, in) times the matrices, added to y where `adds`; GATED inputs are (rows, 2 in) */
static void project(const Matrices *matrices, const float *x, int64_t rows, int kind, const float *norm, float epsilon,
                    int adds, float *y, int threads) {
    int64_t in = matrices->part->in, held = rows < ROWS ? rows : ROWS, stride = (in + LANES - 1) / LANES * LANES;
    int64_t integers = 0, pieces = 0, shares = 0;
    float scales[ROWS];
    Projection one = {
        .matrices = matrices, .norm = norm, .scales = scales, .epsilon = epsilon, .kind = kind, .adds = adds,
    };
    for (int64_t i = 0; i < matrices->parts; i++) {
        const Matrix *matrix = matrices->part + i;
        int64_t units = matrix->out, size = matrix->chunks * matrix->width;
        if (matrix->kind == ROWS8) {
            integers = size;
            if (size > stride) stride = size;
        } else {
            units = (matrix->out + PANEL - 1) / PANEL;
            size = bytes_of_panel(matrix->kind, in);
            if (bits_of(matrix->kind)) pieces = in / GROUP;
        }
        int64_t count = threads * (units * size / (threads * PART) + 1); /* as many for each thread */
        one.share[i] = (units + count - 1) / count;
        one.shares[i] = (units + one.share[i] - 1) / one.share[i];
        shares += one.shares[i];
    }
    one.stride = stride;
    one.values = aligned_alloc(64, held * stride * sizeof(float));
    if (integers) one.integers = aligned_alloc(64, held * integers * sizeof(int16_t));
    if (pieces) one.pieces = aligned_alloc(64, held * pieces * sizeof(Piece));
    for (int64_t first = 0; first < rows; first += ROWS) {
        one.rows = rows - first < ROWS ? rows - first : ROWS;
        one.x = x + first * in * (kind == GATED ? 2 : 1);
        one.y = y + first * matrices->out;
        run(round_row, &one, one.rows, one.rows > 4 ? threads : 1);
        run(multiply_share, &one, shares, threads);
    }
    free(one.pieces);
    free(one.integers);
    free(one.values);
}

/* ---- attention */

static void rotate(float *head, int64_t size, const float *norm, float epsilon, const float *angles) {
    float factor = norm ? normalizer(head, size, epsilon) : 1;
    int64_t half = size / 2;
    if (norm)
        for (int64_t i = 0; i < size; i++) head[i] *= factor * norm[i];
    for (int64_t i = 0; i < half; i++) {
        float a = head[i], b = head[half + i], cosine = angles[i], sine = angles[half + i];
        head[i] = a * cosine - b * sine;
        head[half + i] = b * cosine + a * sine;
    }
}

/* entries i..i + SPAN * count of the sum of values, each times its score; `count` is a constant */
INLINE void weigh(const float *values, const float *scores, int64_t first, int64_t last, int64_t size, int64_t i,
                  int count, float total, float *result) {
    Floats sums[MANY] = {{0}};
    for (int64_t t = first; t <= last; t++)
        for (int n = 0; n < count; n++) sums[n] += floats_at(values + t * size + i + n * SPAN) * scores[t];
    for (int n = 0; n < count; n++) {
        sums[n] /= total;
        memcpy(result + i + n * SPAN, sums + n, sizeof *sums);
    }
}

/* one query over the keys and values of positions first..last; room for scores is a multiple of LANES */
static void attend(const float *query, const float *keys, const float *values, int64_t first, int64_t last,
                   int64_t size, float *scores, float *result) {
    int64_t begin = first / LANES * LANES, end = last + 1, i = 0;
    float scale = 1 / sqrtf((float)size), total;
    Floats most = (Floats){0} - INFINITY, sums[PIECES] = {{0}};
    Whole places;
    for (int n = 0; n < SPAN; n++) places[n] = n;
    for (int64_t t = begin; t < end; t += LANES) {
        Floats even[PIECES] = {{0}}, odd[PIECES] = {{0}}; /* two, as each sum waits for the one before */
        for (int64_t d = 0; d < size; d += 2)
            for (int p = 0; p < PIECES; p++) {
                const float *at = keys + t * size + d * LANES + p * SPAN;
                even[p] += floats_at(at) * query[d];
                odd[p] += floats_at(at + LANES) * query[d + 1];
            }
        for (int p = 0; p < PIECES; p++) {
            int64_t at = t + p * SPAN;
            Whole seen = (places >= (int32_t)(first - at)) & (places <= (int32_t)(last - at));
            Floats some = choose(seen, (even[p] + odd[p]) * scale, (Floats){0} - INFINITY);
            most = choose(some > most, some, most);
            memcpy(scores + at, &some, sizeof some);
        }
    }
    for (int half = SPAN / 2; half; half /= 2)
        for (int n = 0; n < half; n++) most[n] = most[n + half] > most[n] ? most[n + half] : most[n];
    for (int64_t t = begin; t < end; t += LANES)
        for (int p = 0; p < PIECES; p++) {
            Floats powers = exponential(floats_at(scores + t + p * SPAN) - most[0]);
            sums[p] += powers; /* what is not seen adds 1e-38 to a sum of at least 1 */
            memcpy(scores + t + p * SPAN, &powers, sizeof powers);
        }
    total = total_of((const float *)sums);
    for (; i + MANY * SPAN <= size; i += MANY * SPAN) weigh(values, scores, first, last, size, i, MANY, total, result);
    for (; i + SPAN <= size; i += SPAN) weigh(values, scores, first, last, size, i, 1, total, result);
    for (; i < size; i++) {
        float sum = 0;
        for (int64_t t = first; t <= last; t++) sum += scores[t] * values[t * size + i];
        result[i] = sum / total;
    }
}

typedef struct {
    const Layer *layer;
    const Shape *shape;
    const Cache *caches;
    int64_t number; /* of the layer */
    int apart;      /* each row has a cache of its own, else they follow each other in one */
    float *qkv, *result;
} Attention;

typedef struct {
    float *keys, *values;
    const float *angles;
    int64_t head, t; /* floats of a head, and the position of the row */
} Place;

INLINE Place place_of(const Attention *one, int64_t m) {
    const Cache *cache = one->caches + (one->apart ? m : 0);
    int64_t head = cache->capacity * one->shape->size, all = one->shape->key_heads * head;
    float *keys = cache->entries + one->number * 2 * all;
    return (Place){keys, keys + all, cache->angles, head, cache->length + (one->apart ? 0 : m)};
}

static void attend_head(const void *job, int64_t part) {
    const Attention *one = job;
    const Shape *shape = one->shape;
    int64_t size = shape->size, m = part / shape->heads, h = part % shape->heads, window = one->layer->window;
    Place at = place_of(one, m);
    int64_t of = h / (shape->heads / shape->key_heads) * at.head, last = at.t;
    float *scores = malloc((last / LANES + 1) * LANES * sizeof *scores);
    attend(one->qkv + (m * (shape->heads + 2 * shape->key_heads) + h) * size, at.keys + of, at.values + of,
           window && last >= window ? last - window + 1 : 0, last, size, scores, one->result + part * size);
    free(scores);
}

/* qkv (rows, (heads + 2 key heads) * size) -> result (rows, heads * size); appends to keys and values */
static void attention(const Attention *one, int64_t rows) {
    const Layer *layer = one->layer;
    const Shape *shape = one->shape;
    int64_t size = shape->size, heads = shape->heads, key_heads = shape->key_heads;
    for (int64_t m = 0; m < rows; m++) {
        float *row = one->qkv + m * (heads + 2 * key_heads) * size;
        Place at = place_of(one, m);
        for (int64_t h = 0; h < heads + key_heads; h++)
            rotate(row + h * size, size, h < heads ? layer->query_norm : layer->key_norm, shape->epsilon,
                   at.angles + at.t * size);
        for (int64_t h = 0; h < key_heads; h++) {
            float *key = at.keys + h * at.head + at.t / LANES * LANES * size + at.t % LANES;
            for (int64_t d = 0; d < size; d++) key[d * LANES] = row[(heads + h) * size + d];
            memcpy(at.values + h * at.head + at.t * size, row + (heads + key_heads + h) * size, size * sizeof *row);
        }
    }
    run(attend_head, one, rows * heads, one->caches->threads);
}

/* ---- entry points */

/* x (rows, hidden), embeddings of the tokens after those in the cache, becomes the output of the last layer; where
   they are `apart`, each row has a cache of its own, of which several may be of one text in its order */
void read_tokens(const Layer *layers, const Shape *shape, const Cache *caches, int apart, float *x, int64_t rows) {
    float *qkv = malloc(rows * layers->qkv.out * sizeof *qkv);
    float *seen = malloc(rows * layers->output.part->in * sizeof *seen);
    float *inner = malloc(rows * layers->gate_up.out * sizeof *inner), epsilon = shape->epsilon;
    int threads = caches->threads;
    for (const Layer *layer = layers; layer < layers + shape->layers; layer++) {
        project(&layer->qkv, x, rows, NORMALIZED, layer->before_attention, epsilon, 0, qkv, threads);
        Attention one = {layer, shape, caches, layer - layers, apart, qkv, seen};
        attention(&one, rows);
        project(&layer->output, seen, rows, AS_IS, NULL, 0, 1, x, threads);
        project(&layer->gate_up, x, rows, NORMALIZED, layer->before_mlp, epsilon, 0, inner, threads);
        project(&layer->down, inner, rows, GATED, NULL, 0, 1, x, threads);
    }
    free(qkv);
    free(seen);
    free(inner);
}

/* y (rows, out) = x (rows, in), normalized where there are weights of a norm, times the matrices */
void apply_matrices(const Matrices *matrices, const float *norm, float epsilon, const float *x, int64_t rows, float *y,
                  int threads) {
    project(matrices, x, rows, norm ? NORMALIZED : AS_IS, norm, epsilon, 0, y, threads);
}
