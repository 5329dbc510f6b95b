/* Matrices of blocks, packed and multiplied.

   Reads cases: kind, out, in, rows and threads as int64, rows of blocks, and inputs (rows, in).  Writes of each the
   values (out, in) and the results (rows, out).  Every piece of memory has the size that it needs. */

static void *of_bytes(int64_t count) {
    void *memory = aligned_bytes((count + 63) / 64 * 64);
    if (!memory) exit(2);
    return memory;
}

static void *taken(int64_t count) {
    void *memory = malloc(count);
    if (!memory || fread(memory, 1, count, stdin) != (size_t)count) exit(2);
    return memory;
}

static int matrices(void) {
    int64_t head[5];
    while (fread(head, sizeof head, 1, stdin) == 1) {
        int kind = head[0], threads = head[4];
        int64_t out = head[1], in = head[2], rows = head[3], all = rows * out;
        uint8_t *raw = taken(out * in / entries_of(kind) * bytes_of(kind));
        float *x = taken(rows * in * sizeof *x), *values = malloc(out * in * sizeof *values);
        float *y = malloc(all * sizeof *y);
        int64_t *ids = malloc(out * sizeof *ids);
        for (int64_t i = 0; i < out; i++) ids[i] = i;
        uint8_t *panels = of_bytes(packed_bytes(kind, out, in));
        if (!pack_rows(kind, raw, NULL, out, in, panels, threads)) return 3;
        free(raw);
        Group one = {.matrix = {{panels, NULL, NULL, out, in, 0, 0, kind}}, .count = 1, .out = out};
        unpack_rows(one.matrix, ids, out, values);
        if (apply_group(&one, NULL, 0, 0, 0, x, rows, y, threads) != DONE) return 4;
        fwrite(values, sizeof *values, out * in, stdout);
        fwrite(y, sizeof *y, all, stdout);
        free_aligned(panels), free(x), free(values), free(y), free(ids);
    }
    return 0;
}
