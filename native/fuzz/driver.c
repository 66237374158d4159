/* Runs a fuzz target on the files named on the command line. */
#include <stdio.h>

#include "target.h"

int main(int argc, char **argv) {
    static uint8_t data[1 << 20];
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rbe");
        if (file == NULL) {
            perror(argv[i]);
            return 1;
        }
        size_t size = fread(data, 1, sizeof data, file);
        (void)fclose(file);
        (void)LLVMFuzzerTestOneInput(data, size);
    }
    (void)printf("%d inputs\n", argc - 1);
    return 0;
}
