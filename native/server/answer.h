/* What the server answers to each verb. */
#ifndef BODHI_ANSWER_H
#define BODHI_ANSWER_H

#include "server/server.h"

/* A header has come. False, with the reason in the output: this connection may not send such a message. */
bool answer_header(bodhi_server *server, connection *c);

/* A whole message has come. False: the connection is of no more use. */
bool answer(bodhi_server *server, connection *c);

/* Tell those who wait for them of the tasks that have come back. */
void answer_done(bodhi_server *server);

#endif
