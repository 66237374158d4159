/* All who use a store at once: writers, pushers and their server, readers, whoever drops and evicts, full disks. */
#ifndef POWER_ACTORS_H
#define POWER_ACTORS_H

#include "disk.h"

/* Begin to live on the store in `root`/store, with a disk attached to `root`. */
void actors_begin(const char *root, const char *socket_path, chance *c, int large);

/* Somebody does something; what is acknowledged durable is noted. */
void actors_act(void);

/* Let go of everything. */
void actors_end(void);

/* Before a file goes, for disk_attach(). */
void actors_unlinking(int directory, const char *name);

#endif
