/* Fuzz target: a block (behind its atoms less one, u16), decoded by vector instructions and without: both agree. */
#include <stdlib.h>
#include <string.h>

#include "codec/packed.h"
#include "target.h"

/* Decode from and to memory of just the right sizes, so that any byte beyond is noticed. */
static float *decode(const uint8_t *block, size_t size, uint32_t n_atoms, bool portable, bool *right) {
    unsigned char *exact = malloc(size + 1);
    float *out = calloc((size_t)n_atoms * PACKED_AXES, sizeof *out);
    if (exact == NULL || out == NULL) {
        abort();
    }
    memcpy(exact + 1, block, size);
    packed_portable = portable;
    *right = packed_decode(exact + 1, size, n_atoms, out);
    free(exact);
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) {
        return 0;
    }
    uint32_t n_atoms = (data[0] | (uint32_t)data[1] << 8) + 1;
    bool right[2];
    float *by_vector = decode(data + 2, size - 2, n_atoms, false, &right[0]);
    float *portably = decode(data + 2, size - 2, n_atoms, true, &right[1]);
    bool same = memcmp(by_vector, portably, (size_t)n_atoms * PACKED_AXES * sizeof *portably) == 0;
    if (right[0] != right[1] || (right[0] && !same)) {
        abort();
    }
    free(by_vector);
    free(portably);
    return 0;
}
