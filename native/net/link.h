/* A client's connection to a server: dialling, being admitted, messages; every wait has a deadline. */
#pragma once

#include <sys/types.h>

#include "net/wire.h"

enum { KEY_LEAST = 16, KEY_MOST = 1024 };

/* Admission, as docs/server.md has it: greeting (a word, S), answer (C, HMAC "client"), reply (u32, HMAC "server"). */
enum { NONCE = 32, WORD = 8, GREETING = WORD + NONCE, ANSWER = NONCE + HMAC_BYTES, REPLY = 4 + HMAC_BYTES };
#define WORD_WELCOME "BdhAuth2"
#define WORD_FULL    "BdhFull2"

/* HMAC(key, side S C). Errors: as mac_hmac. */
BODHI_CHECKED int link_prove(const uint8_t *key, size_t key_bytes, const char *side, const uint8_t nonces[2 * NONCE],
                             uint8_t out[HMAC_BYTES]);

typedef struct {
    char *address;                                     /* for messages; the caller's */
    int fd;                                            /* -1: closed */
    int n_descriptors, descriptors[WIRE_MAX_SEGMENTS]; /* that came with the message */
    wire_parser in;
    wire_output out;
    enum wire_verb verb;    /* that the last answer answers */
    uint32_t count;         /* records in it */
    unsigned char *records; /* and where they are; the answer's bytes from there on */
    size_t n_bytes;
    int (*interrupted)(void); /* asked now and then while waiting; other than 0 ends the wait. NULL: nobody is asked */
    bool was_interrupted;
    const int *wake; /* an eventfd that ends waits for the server's bytes; NULL: none */
} wire_link;

/* Read a key file that nobody else may read or write. Errors: UNSAFE, SYSTEM, ARGUMENT; as mac_find(). */
BODHI_CHECKED int link_read_key(const char *path, uint8_t key[KEY_MOST], size_t *size);

/* Of `link` only `interrupted` is set before; every function below can then fail with INTERRUPTED. Connect to
 * "host:port" or to the path of a Unix socket, whose server must be of user `owner`, and be admitted. `key` may be NULL
 * for a path. Deadlines are times of now_ms(). Errors: UNREACHABLE, UNSAFE, PROTOCOL, ARGUMENT, MEMORY.
 */
BODHI_CHECKED int link_dial(wire_link *link, char *address, uid_t owner, const uint8_t *key, size_t key_bytes,
                            int64_t deadline);

/* Send bytes. Errors: UNREACHABLE. */
BODHI_CHECKED int link_send(wire_link *link, const void *data, size_t size, int64_t deadline);

/* Send a message whose body comes in parts. Errors: UNREACHABLE, MEMORY. */
BODHI_CHECKED int link_send_message(wire_link *link, enum wire_verb verb, const wire_part *parts, int n,
                                    int64_t deadline);

/* Receive an answer. END: the deadline has passed. Errors: UNREACHABLE, PROTOCOL, MEMORY; the answer's own. */
BODHI_CHECKED int link_receive(wire_link *link, int64_t deadline);

/* The same, to a request that was sent; another answer is an error, and a deadline that has passed. */
BODHI_CHECKED int link_answer(wire_link *link, enum wire_verb verb, int64_t deadline);

/* Send a request and receive its answer; as link_answer. */
BODHI_CHECKED int link_ask(wire_link *link, enum wire_verb verb, const wire_part *parts, int n, int64_t deadline);

/* OPEN a dataset; `opened` may be NULL. Errors: as link_ask. */
BODHI_CHECKED int link_open(wire_link *link, const wire_open *open, wire_opened *opened, int64_t deadline);

void link_close(wire_link *link);

/* Have the system find out within a minute that the machine at the other end of a TCP socket is gone. */
void link_keep_alive(int fd);
