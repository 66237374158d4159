/* Fuzz target: bytes that tell a set of atoms, of any content; what is taken from them ascends, and can be told again.
 *
 * The input's first two bytes are the number of ids less one, the rest is the bytes; a delta is to the even numbers
 * below 200. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "codec/ids.h"
#include "target.h"

enum { EVEN = 100 };

static void tell_again(const uint32_t *ids, size_t n, const id_set *base) {
    id_bytes told = {0};
    id_set scratch = {0};
    bool shorter;
    uint32_t *again = malloc(n * sizeof *again);
    if (again == NULL || !ids_write(&told, ids, n) || !ids_read(told.bytes, told.size, NULL, again, n) ||
        memcmp(ids, again, n * sizeof *ids) != 0 || told.size > ids_most(ids, n) ||
        !ids_write_delta(&told, ids, n, base, 64, SIZE_MAX, &scratch, &shorter) ||
        (shorter && (!ids_read(told.bytes, told.size, base, again, n) || memcmp(ids, again, n * sizeof *ids) != 0))) {
        abort();
    }
    free(again);
    free(told.bytes);
    id_set_free(&scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint32_t even[EVEN];
    for (uint32_t i = 0; i < EVEN; i++) {
        even[i] = 2 * i;
    }
    const id_set base = {.ids = even, .n = EVEN, .capacity = EVEN};
    if (size < 2) {
        return 0;
    }
    size_t n = (data[0] | (size_t)data[1] << 8) + 1;
    unsigned char *exact = malloc(size); /* so that any byte beyond is noticed */
    uint32_t *ids = malloc(n * sizeof *ids);
    if (exact == NULL || ids == NULL) {
        abort();
    }
    memcpy(exact, data + 2, size - 2);
    if (ids_read(exact, size - 2, &base, ids, n)) {
        for (size_t i = 1; i < n; i++) {
            if (ids[i] <= ids[i - 1]) {
                abort();
            }
        }
        tell_again(ids, n, &base);
    }
    free(exact);
    free(ids);
    return 0;
}
