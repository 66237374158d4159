/* What a store has beside frames and their places, for readers who may not enter it. */
#ifndef BODHI_CONTENTS_H
#define BODHI_CONTENTS_H

#include "server/server.h"

/* Each puts its answer into the connection's output. False after an error. */
bool answer_generations(const bodhi_server *server, connection *c);
bool answer_attachment(connection *c);
bool answer_mark(connection *c);

#endif
