/* Where frames lie: the answer to a READ. */
#ifndef BODHI_PLACES_H
#define BODHI_PLACES_H

#include "server/server.h"

/* Put the places of frames into a connection's output, with descriptors of their segments. False after an error. */
bool send_places(bodhi_server *server, connection *c, const int64_t *numbers, size_t n);

#endif
