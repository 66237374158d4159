/* In place of libsodium's header of this name: what its Poly1305 uses of it. */
#ifndef sodium_utils_H
#define sodium_utils_H

#include <stddef.h>
#include <string.h>

#ifndef SODIUM_C99
#define SODIUM_C99(X) X
#endif

static inline void sodium_memzero(void *const pnt, const size_t len) {
    explicit_bzero(pnt, len);
}

#endif
