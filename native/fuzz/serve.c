/* A server for tests/io/server/fuzz.py: serve STORE SOCKET IN-TURNS CONNECTIONS, until SIGTERM. */
#include <signal.h>

#include "../../tests/native/sockets.h"
#include "server/serve.h"

char doing[256] = "to serve";

static volatile sig_atomic_t wake = -1;

static void end(int number) {
    (void)number;
    if (wake < 0) {
        _exit(0); /* nothing was served yet */
    }
    ssize_t put = write(wake, "e", 1);
    (void)put;
}

int main(int n, char **words) {
    CHECK(n == 5);
    (void)signal(SIGTERM, end);
    bodhi_serve_options options = {.listener = listen_at(words[2], SOCK_NONBLOCK),
                                   .serialize_reads = words[3][0] == '1',
                                   .message_ms = 5000,
                                   .batch_ms = 100,
                                   .max_connections = (int)strtol(words[4], NULL, 10)};
    bodhi_server *server = NULL;
    CHECK(bodhi_server_open(words[1], &options, &server) == BODHI_OK);
    wake = bodhi_server_wake(server);
    int status = bodhi_server_run(server);
    bodhi_server_close(server);
    (void)close(options.listener);
    return status >= 0 ? 0 : 1;
}
