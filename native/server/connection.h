/* Connections of the server: their bytes, in and out; each message is handed to the server's on_message. */
#ifndef BODHI_CONNECTION_H
#define BODHI_CONNECTION_H

#include "server/server.h"

#define MORE "'himach cache start --connections' allows more"

/* Take a connection up, or refuse it. Where there is no slot, one that has not said anything yet goes, the oldest
 * first. `session` is the key of its messages, MAC_KEY bytes; NULL: they have no MAC. */
void connection_add(bodhi_server *server, int fd, unsigned rights, const caller *from, const uint8_t *session);

/* Tell why and close. */
void connection_refuse(bodhi_server *server, int fd, const uint8_t *session, int status, const char *text);

/* epoll has told of a connection. */
void connection_event(bodhi_server *server, connection *c, uint32_t events);

/* Acknowledgements and turns have put output into other connections than the one that was heard: send what waits. Go on
 * with bodies that waited for memory, if there is some now. */
void connections_update(bodhi_server *server);

/* False: the connection is broken. */
bool connection_send(connection *c);

/* Whether some connection waits for memory. */
bool connections_wait(const bodhi_server *server);

/* Drop those that are late with what they have to send or take, and where memory is short those that hold some of it
 * and do not move. */
void connections_tick(bodhi_server *server);

/* Say that the server has as many connections as it may have. */
void connections_explain(const bodhi_server *server, char why[WIRE_MAX_TEXT]);

/* Close at once, without a word. */
void connection_drop(bodhi_server *server, connection *c);

uint64_t connection_id(const bodhi_server *server, const connection *c);

/* Room for so many bytes of the answer that is being made, for which c->out.n_body is to be raised. NULL: memory is
 * out, as output_end() then tells. */
unsigned char *output_room(connection *c, size_t size);

/* Add records or bytes to the answer. */
void output_add(connection *c, const void *data, size_t size);

/* The answer to a verb is complete, with so many records. False: memory is out. */
bool output_end(connection *c, enum wire_verb verb, size_t count);

/* Put an answer that says why there is none into the output; always false. */
bool output_error(connection *c, int status, const char *text);

#endif
