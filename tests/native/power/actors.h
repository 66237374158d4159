/* All who use a store at once: writers, pushers of frames and slices and their server, ranks that push straight to it,
 * whoever puts slices together, copies, reads, drops and evicts; full disks. */
#pragma once

#include "disk.h"

/* Who acknowledges durably, and how many frames each has. */
enum promiser { BY_WRITER, BY_PUSHER, BY_STRAIGHT, BY_ASSEMBLER, BY_COPIER, PROMISERS };
extern uint64_t promises[PROMISERS];

/* Among the bits of frames: whose the dataset is. */
#define AUTHOR_KNOWN (UINT64_C(1) << 63)
extern const char identity[]; /* of every pusher */

/* Begin to live on the stores below `root`, with a disk attached to `root`. */
void actors_begin(const char *root, const char *socket_path, chance *c, int large);

/* Somebody does something; what is acknowledged durable is noted. */
void actors_act(void);

/* Let go of everything. */
void actors_end(void);

/* Before a file goes, for disk_attach(). */
void actors_unlinking(int directory, const char *name);
