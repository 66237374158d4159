/* What a server says of its store as a whole: the datasets in it, and where its peers are. */
#ifndef BODHI_SURVEY_H
#define BODHI_SURVEY_H

#include "server/server.h"

/* Each puts its answer into the connection's output. False after an error. */
bool answer_survey(bodhi_server *server, connection *c);
bool answer_peers(const bodhi_server *server, connection *c);

#endif
