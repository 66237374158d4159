/* A server for tests/io/server/fuzz.py: serve STORE SOCKET IN-TURNS CONNECTIONS, until SIGTERM. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "bodhi.h"
#include "server/serve.h"

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
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    if (n != 5 || strlen(words[2]) >= sizeof name.sun_path) {
        (void)fprintf(stderr, "usage: served_fuzz STORE SOCKET 0|1 CONNECTIONS\n");
        return 2;
    }
    (void)signal(SIGTERM, end);
    memcpy(name.sun_path, words[2], strlen(words[2]));
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&name, sizeof name) != 0 || listen(listener, 64) != 0) {
        perror(words[2]);
        return 2;
    }
    bodhi_serve_options options = {.listener = listener,
                                   .serialize_reads = words[3][0] == '1',
                                   .message_ms = 5000,
                                   .batch_ms = 100,
                                   .max_connections = (int)strtol(words[4], NULL, 10)};
    bodhi_server *server = NULL;
    if (bodhi_server_open(words[1], &options, &server) != BODHI_OK) {
        (void)fprintf(stderr, "%s\n", bodhi_message());
        return 1;
    }
    wake = bodhi_server_wake(server);
    int status = bodhi_server_run(server);
    bodhi_server_close(server);
    (void)close(listener);
    return status >= 0 ? 0 : 1;
}
