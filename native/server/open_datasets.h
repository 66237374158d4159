/* The datasets that a server has open, each once for all its connections. */
#ifndef BODHI_OPEN_DATASETS_H
#define BODHI_OPEN_DATASETS_H

#include "server/server.h"

/* Open a dataset for a connection, and let go of it. Statuses as bodhi_dataset_open. */
int datasets_acquire(bodhi_server *server, const wire_open *open, open_dataset **out);
void datasets_release(bodhi_server *server, open_dataset *d);
void datasets_close_all(bodhi_server *server);

/* Close the datasets that nobody uses, but some. */
void datasets_close_idle(bodhi_server *server);

/* Count the bytes that wait to be written. */
void datasets_count_backlog(bodhi_server *server);

/* Give a task to the dataset's ingest, which there is. */
void datasets_submit(open_dataset *d, task *t);

/* Have what was pushed written and acknowledged. */
void datasets_flush(open_dataset *d);

#endif
