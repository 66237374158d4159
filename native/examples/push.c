/* A simulation in C that pushes its frames: particles that walk at random in a box.
 *
 *   cc -O2 push.c $(himach cache config --cflags --libs) -o push
 *   ./push KEY_FILE FRAMES SERVER... */
#include <stdio.h>
#include <stdlib.h>

#include "bodhi.h"

enum { N_ATOMS = 1000 };

static void step(float positions[N_ATOMS * 3]) {
    for (int i = 0; i < N_ATOMS * 3; i++) {
        positions[i] += (float)rand() / (float)RAND_MAX - 0.5F; // NOLINT(cert-msc30-c,cert-msc50-cpp)
    }
}

int main(int argc, char **argv) {
    static float positions[N_ATOMS * 3];
    float box[6] = {50, 50, 50, 90, 90, 90};
    if (argc < 4) {
        (void)fprintf(stderr, "usage: %s KEY_FILE FRAMES SERVER...\n", argv[0]);
        return 2;
    }
    bodhi_push_options options = {.key_file = argv[1], .durable = 1};
    bodhi_pusher *pusher = NULL;
    int status = bodhi_push_open((const char *const *)argv + 3, argc - 3, "c-example", NULL, 0, &options, &pusher);
    for (int64_t number = 0; status == BODHI_OK && number < strtol(argv[2], NULL, 10); number++) {
        step(positions);
        bodhi_frame frame = {
            .number = number, .time = 0.5 * (double)number, .n_atoms = N_ATOMS, .positions = positions, .box = box};
        status = bodhi_push(pusher, &frame);
    }
    int closed = bodhi_push_close(pusher);
    if (status != BODHI_OK || closed != BODHI_OK) {
        (void)fprintf(stderr, "%s\n", bodhi_message());
        return 1;
    }
    return 0;
}
