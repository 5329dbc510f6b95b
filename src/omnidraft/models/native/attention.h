/* Attention over keys and values in 16 bits, read once for all query heads that share them and all rows of a sequence.

   Positions are cut into blocks at multiples of BLOCK.  What a query sees of a block gives a maximum, a sum and a
   weighted sum of values; these are merged in the order of the blocks.  All of it follows from the query, its position
   and what lies in its cache up to there: no bit depends on the rows or queries beside it, on the threads, or on how the
   work is divided. */

#pragma once

#include <stdint.h>
#include <string.h>

#include "threads.h"
#include "vectors.h"

#define BLOCK 256 /* positions whose keys and values lie together */
#if SPAN == 16    /* with 32 registers */
#define TILE 12   /* queries, at most, whose sums are in registers at once */
#define SCORED(n) ((n) <= 2 ? 8 : (n) <= 6 ? 4 : 2) /* vectors of positions beside n queries */
#define WEIGHED(n) ((n) <= 6 ? 4 : 2)               /* and of values */
#else
#define TILE 6
#define SCORED(n) ((n) <= 2 ? 4 : 2)
#define WEIGHED(n) ((n) <= 2 ? 4 : 2)
#endif
#define MANY 8     /* tiles of a head from which on they are divided among threads, and blocks below */
#define KEYS_AHEAD 4096 /* halves that are fetched ahead: the processor itself stops at each page */
#define PREPARED 8 /* rows whose keys a thread writes, as rows beside each other share lines of its cache */

typedef struct {
    Half *const *blocks; /* of BLOCK positions: (layers, key heads), keys (BLOCK / LANES, size, LANES) and values
                            (BLOCK, size in whole LANES) of each */
    const float *angles; /* (positions, columns): cosines, then sines, of each kind of layer, and a factor of queries */
    int64_t length;
} Cache;

typedef struct { /* rows that follow each other in one cache */
    const Cache *cache;
    int64_t first, rows, slots; /* the first row in the pass; and results of a query at once */
    int64_t block, blocks;      /* that the rows see in this layer, up to an end */
    int divided;                /* by blocks: each has a slot; else a task merges them as it goes */
    float *queries;             /* (key heads, tiles, size, queries of the tile) */
    float *results;             /* (key heads, queries, slots): weighted sum, maximum and sum */
} Run;

typedef struct { /* of a run, tiles and blocks up to an end */
    const Run *run;
    int64_t head, tile, tiles, block, blocks;
} Task;

typedef struct {
    const Shape *shape;
    Run *runs;
    Task *tasks;
    int64_t rows, count, all; /* rows, runs and tasks */
    int threads;
    /* what differs from layer to layer */
    const Layer *layer;
    int64_t number;
    float *qkv, *seen;
} Attention;

typedef struct {
    int64_t sharing, queries, tiles; /* query heads that share keys; of a run */
} Tiles;

static int64_t whole_lanes(int64_t size) { return (size + LANES - 1) / LANES * LANES; }

static int64_t head_halves(const Shape *shape) { return BLOCK * (shape->size + whole_lanes(shape->size)); }

/* floats of a result: the sum and the maximum lie behind the values */
static int64_t result_floats(const Shape *shape) { return whole_lanes(shape->size) + LANES; }

static Tiles tiles_of(const Shape *shape, int64_t rows) {
    int64_t sharing = shape->heads / shape->key_heads;
    return (Tiles){sharing, rows * sharing, (rows * sharing + TILE - 1) / TILE};
}

static int64_t tile_begin(Tiles tiles, int64_t tile) { return tiles.queries * tile / tiles.tiles; }

static int64_t tile_of(Tiles tiles, int64_t query) { return ((query + 1) * tiles.tiles - 1) / tiles.queries; }

/* the first position that a query at a position sees */
static int64_t first_seen(const Layer *layer, int64_t position) {
    return layer->window && position >= layer->window ? position - layer->window + 1 : 0;
}

/* ---- rows of a pass: positions, keys and values */

static void scale_head(float *head, int64_t size, float factor, const float *norm) {
    for (int64_t i = 0; i < size; i++) head[i] *= factor * norm[i];
}

static void rotate(float *head, int64_t rotated, const float *angles) {
    int64_t half = rotated / 2;
    for (int64_t i = 0; i < half; i++) {
        float a = head[i], b = head[half + i], cosine = angles[i], sine = angles[half + i];
        head[i] = a * cosine - b * sine;
        head[half + i] = b * cosine + a * sine;
    }
}

/* normalizes, where there are weights, and rotates `count` heads */
static void turn_heads(const Shape *shape, const Layer *layer, float *heads, int64_t count, const float *norm,
                       const float *angles) {
    int64_t size = shape->size;
    float of_all = norm && shape->head_norm == OF_ALL ? normalizer(heads, count * size, shape->epsilon) : 0;
    for (float *head = heads; head < heads + count * size; head += size) {
        if (norm && shape->head_norm == OF_ALL) scale_head(head, size, of_all, norm + (head - heads));
        if (norm && shape->head_norm == OF_EACH)
            scale_head(head, size, normalizer(head, size, shape->epsilon), norm);
        rotate(head, layer->rotated, angles);
        if (norm && shape->head_norm == ROTATED)
            scale_head(head, size, normalizer(head, size, shape->epsilon), norm);
    }
}

/* the queries of a row in their tiles, and its keys and values in the cache */
static void prepare_row(const Attention *one, const Run *run, int64_t row) {
    const Shape *shape = one->shape;
    const Layer *layer = one->layer;
    int64_t size = shape->size, wide = whole_lanes(size), heads = shape->heads, key_heads = shape->key_heads;
    int64_t t = run->cache->length + row;
    float *from = one->qkv + (run->first + row) * (heads + 2 * key_heads) * size, scale = shape->attention_scale;
    const float *angles = run->cache->angles + t * shape->columns;
    Half *block = run->cache->blocks[t / BLOCK] + one->number * key_heads * head_halves(shape);
    Tiles tiles = tiles_of(shape, run->rows);
    if (shape->tempered) scale *= angles[shape->columns - 1];
    turn_heads(shape, layer, from, heads, layer->query_norm, angles + layer->angles);
    turn_heads(shape, layer, from + heads * size, key_heads, layer->key_norm, angles + layer->angles);
    for (int64_t h = 0; h < heads; h++, from += size) {
        int64_t query = row * tiles.sharing + h % tiles.sharing, tile = tile_of(tiles, query);
        int64_t begin = tile_begin(tiles, tile), width = tile_begin(tiles, tile + 1) - begin;
        float *to = run->queries + (h / tiles.sharing * tiles.queries + begin) * size + query - begin;
        for (int64_t d = 0; d < size; d++) to[d * width] = from[d] * scale;
    }
    for (int64_t h = 0; h < key_heads; h++, from += size, block += head_halves(shape)) {
        Half *keys = block + t % BLOCK / LANES * LANES * size + t % LANES, *values = block + BLOCK * size;
        const float *value = from + key_heads * size;
        for (int64_t d = 0; d < size; d++) keys[d * LANES] = half_of(from[d]);
        for (int64_t d = 0; d < wide; d++) values[t % BLOCK * wide + d] = d < size ? half_of(value[d]) : 0;
    }
}

static void prepare_rows(const void *job, int64_t share) {
    const Attention *one = job;
    const Run *run = one->runs;
    for (int64_t m = share * PREPARED; m < (share + 1) * PREPARED && m < one->rows; m++) {
        while (m >= run->first + run->rows) run++;
        prepare_row(one, run, m - run->first);
    }
}

/* ---- a tile of queries and a block; numbers of queries, and of vectors, are constants */

/* scores of queries and of the positions of some vectors */
INLINE void score_some(const Half *keys, const float *queries, int64_t size, int n, int vectors, float *scores) {
    Floats sums[TILE][8];
    UNROLL for (int j = 0; j < n; j++)
        UNROLL for (int i = 0; i < vectors; i++) sums[j][i] = (Floats){0};
    for (int64_t d = 0; d < size; d++, keys += LANES, queries += n) {
        Floats some[8];
        UNROLL for (int i = 0; i < vectors; i++) {
            const Half *at = keys + i / PIECES * LANES * size + i % PIECES * SPAN;
            if (i % PIECES == 0) __builtin_prefetch(at + KEYS_AHEAD);
            some[i] = floats_of(at);
        }
        UNROLL for (int j = 0; j < n; j++)
            UNROLL for (int i = 0; i < vectors; i++)
                sums[j][i] = multiplied(some[i], all(queries[j]), sums[j][i]);
    }
    UNROLL for (int j = 0; j < n; j++)
        UNROLL for (int i = 0; i < vectors; i++) put(scores + j * BLOCK + i * SPAN, sums[j][i]);
}

INLINE void score(const Half *keys, const float *queries, int64_t size, int64_t from, int64_t to, int n,
                  float *scores) {
    const int most = SCORED(n), few = most < PIECES ? most : PIECES;
#define SOME(vectors) \
    score_some(keys + from / LANES * LANES * size + from % LANES, queries, size, n, vectors, scores + from)
    for (; from + most * SPAN <= to; from += most * SPAN) SOME(most);
    for (; from < to; from += few * SPAN) SOME(few);
}

/* adds to the results entries of some vectors of the values of positions from..to, each times its power */
INLINE void weigh_some(const Half *values, const float *powers, int64_t wide, int64_t from, int64_t to, int n,
                       int vectors, float *results, int64_t apart) {
    Floats sums[TILE][4];
    UNROLL for (int j = 0; j < n; j++)
        UNROLL for (int i = 0; i < vectors; i++) sums[j][i] = floats_at(results + j * apart + i * SPAN);
    for (int64_t t = from; t < to; t++) {
        Floats some[4];
        UNROLL for (int i = 0; i < vectors; i++) {
            const Half *at = values + t * wide + i * SPAN;
            if (i % 2 == 0) __builtin_prefetch(at + KEYS_AHEAD);
            some[i] = floats_of(at);
        }
        UNROLL for (int j = 0; j < n; j++)
            UNROLL for (int i = 0; i < vectors; i++)
                sums[j][i] = multiplied(some[i], all(powers[j * BLOCK + t]), sums[j][i]);
    }
    UNROLL for (int j = 0; j < n; j++)
        UNROLL for (int i = 0; i < vectors; i++) put(results + j * apart + i * SPAN, sums[j][i]);
}

INLINE void weigh(const Half *values, const float *powers, int64_t wide, int64_t from, int64_t to, int n,
                  float *results, int64_t apart) {
    const int most = WEIGHED(n);
    int64_t i = 0;
    for (; i + most * SPAN <= wide; i += most * SPAN)
        weigh_some(values + i, powers, wide, from, to, n, most, results + i, apart);
    for (; i < wide; i += SPAN) weigh_some(values + i, powers, wide, from, to, n, 1, results + i, apart);
}

static void score_tile(const Half *keys, const float *queries, int64_t size, int64_t from, int64_t to, int64_t n,
                       float *scores) {
    switch (n) {
#define SCORE(n) case n: score(keys, queries, size, from, to, n, scores); break;
        SCORE(1) SCORE(2) SCORE(3) SCORE(4) SCORE(5) SCORE(6)
#if TILE == 12
        SCORE(7) SCORE(8) SCORE(9) SCORE(10) SCORE(11) SCORE(12)
#endif
    }
}

static void weigh_tile(const Half *values, const float *powers, int64_t wide, int64_t from, int64_t to, int64_t n,
                       float *results, int64_t apart) {
    if (from < to) switch (n) {
#define WEIGH(n) case n: weigh(values, powers, wide, from, to, n, results, apart); break;
        WEIGH(1) WEIGH(2) WEIGH(3) WEIGH(4) WEIGH(5) WEIGH(6)
#if TILE == 12
        WEIGH(7) WEIGH(8) WEIGH(9) WEIGH(10) WEIGH(11) WEIGH(12)
#endif
    }
}

/* scores of positions from..to become powers of e; `result` gets the maximum and the sum */
static void exponentiate(float *scores, int64_t from, int64_t to, float cap, float *result) {
    int64_t begin = from / LANES * LANES, end = whole_lanes(to);
    Floats most = all(-INFINITY), sums[PIECES] = {{0}};
    for (int64_t t = begin; t < end && cap; t += SPAN) put(scores + t, capped(floats_at(scores + t), cap));
    for (int64_t t = begin; t < from; t++) scores[t] = -INFINITY;
    for (int64_t t = to; t < end; t++) scores[t] = -INFINITY;
    for (int64_t t = begin; t < end; t += SPAN) most = maximum(floats_at(scores + t), most);
    for (int half = SPAN / 2; half; half /= 2)
        for (int n = 0; n < half; n++) most[n] = most[n + half] > most[n] ? most[n + half] : most[n];
    most = all(most[0]);
    for (int64_t t = begin; t < end; t += LANES)
        for (int p = 0; p < PIECES; p++) {
            Floats powers = exponential(floats_at(scores + t + p * SPAN) - most);
            sums[p] += powers; /* what is not seen adds 1e-38 to a sum of at least 1 */
            put(scores + t + p * SPAN, powers);
        }
    result[0] = most[0];
    result[1] = total_of((const float *)sums);
}

/* what the queries of a tile see of a block, into their results, `apart` floats from each other; a sum is 0 where a
   query sees nothing of it */
static void attend_tile(const Attention *one, const Task *task, int64_t tile, int64_t block, float *results,
                        int64_t apart) {
    const Run *run = task->run;
    int64_t size = one->shape->size, wide = whole_lanes(size), place = block * BLOCK;
    Tiles tiles = tiles_of(one->shape, run->rows);
    int64_t begin = tile_begin(tiles, tile), n = tile_begin(tiles, tile + 1) - begin;
    int64_t from[TILE], to[TILE], lowest = BLOCK, highest = 0, first = 0, last = BLOCK; /* first..last: seen by all */
    for (int64_t j = 0; j < n; j++) {
        int64_t t = run->cache->length + (begin + j) / tiles.sharing, seen = first_seen(one->layer, t);
        from[j] = seen > place ? seen - place : 0;
        to[j] = t + 1 < place + BLOCK ? t + 1 - place : BLOCK;
        first = from[j] > first ? from[j] : first;
        last = to[j] < last ? to[j] : last;
        if (from[j] < to[j]) {
            lowest = from[j] < lowest ? from[j] : lowest;
            highest = to[j] > highest ? to[j] : highest;
        }
    }
    const Half *keys = run->cache->blocks[block];
    keys += (one->number * one->shape->key_heads + task->head) * head_halves(one->shape);
    const Half *values = keys + BLOCK * size;
    float scores[TILE * BLOCK] __attribute__((aligned(64)));
    if (lowest < highest)
        score_tile(keys, run->queries + (task->head * tiles.queries + begin) * size, size, lowest / LANES * LANES,
                   highest, n, scores);
    for (int64_t j = 0; j < n; j++) {
        float *result = results + j * apart;
        memset(result, 0, (wide + 2) * sizeof *result);
        if (from[j] >= to[j]) continue;
        exponentiate(scores + j * BLOCK, from[j], to[j], one->shape->score_cap, result + wide);
        weigh_tile(values, scores + j * BLOCK, wide, from[j], first < last ? first : to[j], 1, result, apart);
    }
    weigh_tile(values, scores, wide, first, last, n, results, apart);
    for (int64_t j = 0; j < n && first < last; j++)
        weigh_tile(values, scores + j * BLOCK, wide, last, to[j], 1, results + j * apart, apart);
}

/* ---- results of blocks, in their order */

static void merge(float *result, const float *other, int64_t wide) {
    float most = other[wide] > result[wide] ? other[wide] : result[wide];
    if (other[wide + 1] == 0) return; /* nothing is seen of the block */
    if (result[wide + 1] == 0) {
        memcpy(result, other, (wide + 2) * sizeof *result);
        return;
    }
    float a = exponential(all(result[wide] - most))[0], b = exponential(all(other[wide] - most))[0];
    for (int64_t i = 0; i < wide; i += SPAN)
        put(result + i, multiplied(floats_at(other + i), all(b), floats_at(result + i) * a));
    result[wide] = most;
    result[wide + 1] = result[wide + 1] * a + other[wide + 1] * b;
}

/* the results of a query's blocks as one, divided by the sum */
static void finish(const Attention *one, const Run *run, int64_t head, int64_t query, int64_t slots) {
    int64_t size = one->shape->size, wide = whole_lanes(size), floats = result_floats(one->shape);
    Tiles tiles = tiles_of(one->shape, run->rows);
    float *result = run->results + (head * tiles.queries + query) * run->slots * floats;
    int64_t row = run->first + query / tiles.sharing, h = head * tiles.sharing + query % tiles.sharing;
    for (int64_t slot = 1; slot < slots; slot++) merge(result, result + slot * floats, wide);
    float *seen = one->seen + (row * one->shape->heads + h) * size, sum = result[wide + 1];
    for (int64_t d = 0; d < size; d++) seen[d] = result[d] / sum;
}

static void finish_head(const void *job, int64_t share) {
    const Attention *one = job;
    const Run *run = one->runs + share / one->shape->key_heads;
    if (!run->divided || run->blocks - run->block < 2) return; /* its tasks have done it */
    for (int64_t query = 0; query < tiles_of(one->shape, run->rows).queries; query++)
        finish(one, run, share % one->shape->key_heads, query, run->blocks - run->block);
}

static void attend_task(const void *job, int64_t share) {
    const Attention *one = job;
    const Task *task = one->tasks + share;
    const Run *run = task->run;
    Tiles tiles = tiles_of(one->shape, run->rows);
    int64_t wide = whole_lanes(one->shape->size), floats = result_floats(one->shape), apart = run->slots * floats;
    float *results = run->results + task->head * tiles.queries * apart;
    for (int64_t block = task->block; block < task->blocks; block++) {
        int64_t slot = run->divided ? block - run->block : block > task->block;
        for (int64_t tile = task->tile; tile < task->tiles; tile++) {
            int64_t begin = tile_begin(tiles, tile), end = tile_begin(tiles, tile + 1);
            attend_tile(one, task, tile, block, results + begin * apart + slot * floats, apart);
            for (int64_t query = begin; query < end && slot && !run->divided; query++)
                merge(results + query * apart, results + query * apart + floats, wide);
        }
    }
    int64_t end = tile_begin(tiles, task->tiles);
    if (!run->divided || run->blocks - run->block < 2)
        for (int64_t query = tile_begin(tiles, task->tile); query < end; query++)
            finish(one, run, task->head, query, 1);
}

/* ---- a pass */

/* the tasks of a layer: of many rows each has some tiles and all blocks, of few all tiles and one block */
static void divide(Attention *one) {
    int64_t heads = one->shape->key_heads;
    one->all = 0;
    for (Run *run = one->runs; run < one->runs + one->count; run++) {
        int64_t tiles = tiles_of(one->shape, run->rows).tiles;
        int64_t each = tiles / (4 * one->threads / (heads * one->count) + 1) + 1;
        run->block = first_seen(one->layer, run->cache->length) / BLOCK;
        run->blocks = (run->cache->length + run->rows - 1) / BLOCK + 1;
        int64_t begin = run->divided ? run->block : 0, end = run->divided ? run->blocks : (tiles + each - 1) / each;
        for (int64_t at = begin; at < end; at++) /* heads of a block follow each other in memory */
            for (int64_t head = 0; head < heads; head++) {
                int64_t last = (at + 1) * each < tiles ? (at + 1) * each : tiles;
                Task blocks = {run, head, 0, tiles, at, at + 1};
                Task some = {run, head, at * each, last, run->block, run->blocks};
                one->tasks[one->all++] = run->divided ? blocks : some;
            }
    }
}

/* qkv (rows, (heads + 2 key heads) * size) -> seen (rows, heads * size); appends to keys and values */
static void attention(Attention *one, const Layer *layer, int64_t number) {
    one->layer = layer;
    one->number = number;
    divide(one);
    run(prepare_rows, one, (one->rows + PREPARED - 1) / PREPARED, one->threads);
    run(attend_task, one, one->all, one->threads);
    for (const Run *each = one->runs; each < one->runs + one->count; each++)
        if (each->divided && each->blocks - each->block > 1) {
            run(finish_head, one, one->count * one->shape->key_heads, one->threads);
            return;
        }
}

/* the runs of rows, each with a cache where they are `apart`; returns their number */
static int64_t find_runs(const Shape *shape, const Cache *caches, int apart, int64_t rows, Run *runs) {
    int64_t count = 0;
    for (int64_t m = 0; m < rows; m++) {
        const Cache *cache = caches + (apart ? m : 0);
        if (m && (!apart || (cache->blocks == cache[-1].blocks && cache->length == cache[-1].length + 1)))
            runs[count - 1].rows++;
        else
            runs[count++] = (Run){.cache = cache, .first = m, .rows = 1};
    }
    for (Run *run = runs; run < runs + count; run++) {
        int64_t blocks = (run->cache->length + run->rows - 1) / BLOCK + 1;
        run->divided = tiles_of(shape, run->rows).tiles < MANY;
        run->slots = run->divided || blocks < 2 ? blocks : 2;
    }
    return count;
}
