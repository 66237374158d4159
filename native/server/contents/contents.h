/* What a store has: its datasets, where frames lie, and what lies beside them for those who may not enter it. */
#ifndef BODHI_CONTENTS_H
#define BODHI_CONTENTS_H

#include "server/server.h"

/* Put the places of frames into a connection's output, with descriptors of their segments. False after an error. */
bool send_places(bodhi_server *server, connection *c, const int64_t *numbers, size_t n);

/* Put bytes of segments into a connection's output. False after an error. */
bool answer_take(bodhi_server *server, connection *c);

/* Each puts its answer into the connection's output. False after an error. */
bool answer_attachment(connection *c);
bool answer_mark(connection *c);
bool answer_survey(bodhi_server *server, connection *c);

#endif
