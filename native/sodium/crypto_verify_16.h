/* In place of libsodium's header of this name: compares in a time that tells nothing. */
#ifndef crypto_verify_16_H
#define crypto_verify_16_H

static inline int crypto_verify_16(const unsigned char *x, const unsigned char *y) {
    volatile unsigned char differ = 0;
    for (int i = 0; i < 16; i++) {
        differ = (unsigned char)(differ | (x[i] ^ y[i]));
    }
    return differ == 0 ? 0 : -1;
}

#endif
