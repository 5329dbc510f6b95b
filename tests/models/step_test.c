/* step.c for the sanitizers of compilers and for other processors, see test_step.py: passes over a small random model,
   whose results it writes, or with an argument matrices of blocks.  With LIBRARY, the functions are those of the library
   that another argument before it names. */

#include "system.h"

static _Atomic int left = -1; /* allocations that succeed from now on, -1 for all */

static int refuses(void) { return left >= 0 && left-- == 0; }
static void *some(size_t size) { return refuses() ? NULL : malloc(size); }
static void *aligned(size_t size) { return refuses() ? NULL : aligned_bytes(size); }
#define malloc some
#undef aligned_bytes
#define aligned_bytes aligned
#include "step.c"
#undef malloc

#ifdef LIBRARY
#include "library.h"
#endif
#include <stdio.h>

#include "matrices.h"

enum { LAYERS = 2, HEADS = 6, KEY_HEADS = 2, HEAD_SIZE = 10, HIDDEN = 40, INNER = 70, TOKENS = 2 * BLOCK + 70 };
enum { TEXTS = 3, QUEUE = (HEADS + 2 * KEY_HEADS) * HEAD_SIZE, KINDS = 4, COLUMNS = HEAD_SIZE + 5 };

#define CHECK(holds) CHECK_AT(holds, __LINE__)
#define CHECK_AT(holds, line) \
    if (!(holds)) { \
        fputs("line " TEXT_OF(line) ": " #holds " does not hold\n", stderr); \
        exit(1); \
    }
#define TEXT_OF(line) #line

typedef struct {
    Half *blocks[TOKENS / BLOCK + 1];
    Cache cache;
    float x[TOKENS][HIDDEN];
} Text;

static Layer layers[LAYERS];
static Shape shape; /* of one of KINDS */
static float angles[TOKENS][COLUMNS], ones[HEADS * HEAD_SIZE];
static uint32_t state = 1;

static int is_finite(float x) { return x - x == 0; }

static float random_number(void) {
    state = state * 1664525 + 1013904223;
    return (float)(state >> 8) / (1 << 24) - 0.5f;
}

static Group group_of(int64_t out, int64_t in) {
    int64_t chunks = in > WIDTH ? 2 : 1, width = (in + chunks * WIDTH - 1) / (chunks * WIDTH) * WIDTH;
    int8_t *weights = calloc(out * chunks * width, 1);
    float *scales = calloc(out, sizeof *scales);
    for (int64_t o = 0; o < out; o++) {
        scales[o] = 0.003f;
        for (int64_t i = 0; i < in; i++)
            weights[(i / width * out + o) * width + i % width] = (int8_t)(random_number() * 254);
    }
    return (Group){.matrix = {{weights, scales, NULL, out, in, chunks, width, ROWS8}}, .count = 1, .out = out};
}

static void start(Text *text) {
    int64_t halves = LAYERS * KEY_HEADS * head_halves(&shape);
    for (int i = 0; i <= TOKENS / BLOCK; i++) {
        text->blocks[i] = calloc(halves, sizeof(Half));
        for (int64_t k = 0; k < halves; k++) text->blocks[i][k] = 0x7e00; /* what was not written is no number */
    }
    text->cache = (Cache){text->blocks, *angles, 0};
}

static void stop(Text *text) {
    for (int i = 0; i <= TOKENS / BLOCK; i++) free(text->blocks[i]);
    free(text);
}

/* reads tokens in calls of so many rows */
static void read_text(Text *text, const float *x, int64_t rows, int threads) {
    memcpy(text->x, x, sizeof text->x);
    for (int64_t t = 0; t < TOKENS; t += rows) {
        text->cache.length = t;
        CHECK(read_tokens(layers, &shape, &text->cache, 0, text->x[t], t + rows < TOKENS ? rows : TOKENS - t,
                          threads) == DONE);
    }
}

typedef struct {
    const float *x, *expected;
    int64_t rows;
    int threads;
} Reader;

static atomic_int finished; /* readers */

static THREAD reads(void *given) {
    const Reader *reader = given;
    Text *text = calloc(1, sizeof *text);
    start(text);
    read_text(text, reader->x, reader->rows, reader->threads);
    CHECK(!memcmp(text->x, reader->expected, sizeof text->x));
    stop(text);
    atomic_fetch_add(&finished, 1);
    return 0;
}

/* the switches of a kind of model: those of Llama, of Gemma 2, of Command R, of OLMo with a rotation of a part */
static void choose_kind(int kind) {
    const float *none = NULL;
    shape = (Shape){.layers = LAYERS, .heads = HEADS, .key_heads = KEY_HEADS, .size = HEAD_SIZE, .columns = COLUMNS,
                    .epsilon = 1e-5f, .attention_scale = 0.3f};
    shape.gelu = kind == 1;
    shape.score_cap = kind == 1 ? 5 : 0;
    shape.centered = shape.parallel = kind == 2;
    shape.head_norm = kind == 3 ? OF_ALL : kind == 2 ? ROTATED : OF_EACH;
    shape.tempered = kind == 3;
    for (int i = 0; i < LAYERS; i++) {
        Layer *layer = layers + i;
        layer->before_attention = layer->before_mlp = kind == 3 ? none : ones;
        layer->after_attention = layer->after_mlp = kind % 2 ? ones : none;
        layer->query_norm = layer->key_norm = kind ? ones : none;
        layer->rotated = kind == 3 ? 4 : kind == 2 && i ? 0 : HEAD_SIZE;
        layer->angles = kind == 3 ? HEAD_SIZE : 0;
    }
}

static int brief; /* one text of each kind is read, and nothing is checked */
static int full = KINDS; /* kinds of which several texts are read, which takes an emulator long */

static void check_passes(int kind);

int main(int count, char **arguments) {
#ifdef LIBRARY
    load(arguments[1]);
    arguments++, count--;
#endif
    if (count > 1 && !strcmp(arguments[1], "matrices")) return matrices();
    brief = count > 1 && !strcmp(arguments[1], "brief");
    if (count > 1 && !strcmp(arguments[1], "emulated")) full = 1;
    for (int i = 0; i < HEADS * HEAD_SIZE; i++) ones[i] = 1;
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < HEAD_SIZE / 2; i++) {
            float half = t * (i + 1) % 31 / 8.f - 2, square = half * half; /* no system's own sines */
            angles[t][i] = (1 - square) / (1 + square), angles[t][HEAD_SIZE / 2 + i] = 2 * half / (1 + square);
            if (i < 2)
                angles[t][HEAD_SIZE + i] = angles[t][i], angles[t][HEAD_SIZE + 2 + i] = angles[t][HEAD_SIZE / 2 + i];
            angles[t][COLUMNS - 1] = 1 + t / BLOCK;
        }
    for (int i = 0; i < LAYERS; i++)
        layers[i] = (Layer){.qkv = group_of(QUEUE, HIDDEN), .output = group_of(HIDDEN, HEADS * HEAD_SIZE),
                            .gate_up = group_of(2 * INNER, HIDDEN), .down = group_of(HIDDEN, INNER),
                            .window = i ? BLOCK + 9 : 0};
    for (int kind = 0; kind < KINDS; kind++) {
        choose_kind(kind);
        check_passes(kind);
    }
    for (int i = 0; i < LAYERS; i++) {
        Group *all[] = {&layers[i].qkv, &layers[i].output, &layers[i].gate_up, &layers[i].down};
        for (int k = 0; k < 4; k++) free((void *)all[k]->matrix->weights), free((void *)all[k]->matrix->scales);
    }
    return 0;
}

static void check_texts(Text *text, float x[TOKENS][HIDDEN], float others[TEXTS][TOKENS][HIDDEN]) {
    static float rows[TEXTS * 3][HIDDEN];
    Text *texts[TEXTS];

    /* two callers at once, one of whom has the threads */
    Reader readers[] = {{*x, *text->x, 7, 4}, {*x, *text->x, 150, 2}};
    atomic_store(&finished, 0);
    for (int i = 0; i < 2; i++) CHECK(start_thread(reads, readers + i));
    while (atomic_load(&finished) < 2) let_others_run();

    /* tokens of several texts in one pass, each text at the position where the one before ends: as each alone */
    Cache places[TEXTS * 3];
    for (int i = 0; i < TEXTS; i++) {
        int64_t from = BLOCK - 4 + 3 * i;
        start(texts[i] = calloc(1, sizeof **texts));
        read_text(texts[i], *others[i], TOKENS, 2);
        for (int m = 0; m < 3; m++) {
            memcpy(rows[3 * i + m], others[i][from + m], sizeof *rows);
            places[3 * i + m] = (Cache){texts[i]->blocks, *angles, from + m};
        }
    }
    CHECK(read_tokens(layers, &shape, places, 1, *rows, TEXTS * 3, 3) == DONE);
    for (int i = 0; i < TEXTS; i++) CHECK(!memcmp(rows[3 * i], texts[i]->x[BLOCK - 4 + 3 * i], 3 * sizeof *rows));

    /* a text that was cropped and goes on in another way: nothing is left of what was there */
    memcpy(others[1], others[0], (BLOCK + 30) * sizeof *x);
    texts[0]->cache.length = BLOCK + 30;
    memcpy(texts[0]->x, others[1], sizeof texts[0]->x);
    CHECK(read_tokens(layers, &shape, &texts[0]->cache, 0, texts[0]->x[BLOCK + 30], 20, 2) == DONE);
    read_text(texts[1], *others[1], 31, 2);
    CHECK(!memcmp(texts[0]->x[BLOCK + 30], texts[1]->x[BLOCK + 30], 20 * sizeof *x));
    for (int i = 0; i < TEXTS; i++) stop(texts[i]);
}

static void check_passes(int kind) {
    static float x[TOKENS][HIDDEN], others[TEXTS][TOKENS][HIDDEN], rows[TEXTS * 3][HIDDEN];
    Text *text = calloc(1, sizeof *text);
    for (int t = 0; t < TOKENS; t++) {
        for (int i = 0; i < HIDDEN; i++) x[t][i] = random_number();
        for (int i = 0; i < TEXTS * HIDDEN; i++) others[i / HIDDEN][t][i % HIDDEN] = random_number();
    }
    start(text);
    read_text(text, *x, 64, 4);
    for (int i = 0; i < TOKENS * HIDDEN; i++) CHECK(is_finite(text->x[i / HIDDEN][i % HIDDEN]));
    fwrite(text->x, sizeof text->x, 1, stdout);
    if (brief) {
        stop(text);
        return;
    }
    for (int i = 0; i < 1000; i++) { /* the number of threads changes from call to call */
        float y[3][HIDDEN];
        CHECK(apply_group(&layers->output, ones, kind == 2, 1e-5f, 3, rows[0], 1, *y, i % 3 ? 2 : 8) == DONE);
    }

    if (kind < full) check_texts(text, x, others);

    /* numbers at the edges, which must not be converted to integers that do not exist */
    const float edges[] = {0, 1e-45f, 1e-38f, 1e-33f, 3e38f, INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 8; i++) {
        text->cache.length = 5;
        memcpy(*rows, x[5], sizeof *rows);
        for (int k = 0; k < HIDDEN; k += i % 2 + 1) rows[0][k] = edges[i];
        CHECK(read_tokens(layers, &shape, &text->cache, 0, *rows, 1, 2) == DONE);
        float y[HIDDEN], wide[2 * INNER];
        for (int k = 0; k < 2 * INNER; k++) wide[k] = edges[i];
        CHECK(apply_group(&layers->output, NULL, 0, 0, 0, wide, 1, y, 1) == DONE);
        CHECK(i == 0 ? y[0] == 0 : i < 4 ? is_finite(y[0]) : i == 4 || !is_finite(y[0])); /* products of the fifth are too large */
    }

#ifndef LIBRARY /* which asks for memory itself */
    /* each allocation fails once, and nothing has changed */
    int failures = 0;
    for (int code = NO_MEMORY; code != DONE; failures++) {
        memcpy(rows, x, sizeof rows);
        left = failures;
        code = read_tokens(layers, &shape, &text->cache, 0, *rows, 3, 2);
        CHECK(code == DONE || !memcmp(rows, x, sizeof rows));
    }
    CHECK(failures == 3);
    left = 0;
    CHECK(apply_group(&layers->output, NULL, 0, 0, 0, *x, 1, *rows, 1) == NO_MEMORY);
#endif
    stop(text);
}
