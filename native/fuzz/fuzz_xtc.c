/* Fuzz target: the compressed coordinates of an XTC frame with any content. They are decoded whole and in part, which
 * must agree.
 *
 * The input: the number of atoms less one and how many of them are needed (two bytes each), the index of the small
 * sizes (one byte), the least and the greatest coordinate of each axis (six 32-bit integers), and the coordinates. */
#include <stdlib.h>
#include <string.h>

#include "target.h"
#include "xtc/xtc.h"

enum { HEAD = 29, MOST_ATOMS = 1 << 12 };

/* A frame, its data in memory of just the right size, so that any byte beyond is noticed. */
typedef struct {
    size_t n_atoms, needed, n_bytes;
    int index;
    int32_t least[3], greatest[3];
    uint8_t *bytes; /* and XTC_PAD behind */
} frame;

static void *allocate(size_t size) {
    void *memory = calloc(size, 1);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

static frame parse(const uint8_t *data, size_t size) {
    frame in = {
        .n_atoms = (data[0] | (size_t)data[1] << 8) % MOST_ATOMS + 1,
        .n_bytes = size - HEAD,
        .index = data[4],
    };
    in.needed = (data[2] | (size_t)data[3] << 8) % (in.n_atoms + 1);
    memcpy(in.least, data + 5, sizeof in.least);
    memcpy(in.greatest, data + 17, sizeof in.greatest);
    in.bytes = allocate(in.n_bytes + XTC_PAD);
    memcpy(in.bytes, data + HEAD, in.n_bytes);
    return in;
}

static enum xtc_status decode(const frame *f, size_t needed, float *out) {
    xtc_frame whole = {.bytes = f->bytes, .n_bytes = f->n_bytes, .index = f->index};
    memcpy(whole.least, f->least, sizeof f->least);
    memcpy(whole.greatest, f->greatest, sizeof f->greatest);
    size_t used = 0;
    enum xtc_status status = xtc_decode(&whole, 0.001F, 10, f->n_atoms, needed, out, &used);
    if (used > whole.n_bytes) {
        abort();
    }
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < HEAD) {
        return 0;
    }
    frame f = parse(data, size);
    const size_t out_bytes = 3 * f.n_atoms * sizeof(float);
    float *whole = allocate(out_bytes), *part = allocate(out_bytes);
    const enum xtc_status status = decode(&f, f.n_atoms, whole);
    const enum xtc_status part_status = decode(&f, f.needed, part);
    if (status == XTC_OK && (part_status != XTC_OK || memcmp(part, whole, 3 * f.needed * sizeof(float)) != 0)) {
        abort();
    }
    free(whole);
    free(part);
    free(f.bytes);
    return 0;
}
