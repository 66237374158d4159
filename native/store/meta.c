/* The directory of a dataset, and the meta file in it, which says whose it is. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/status.h"
#include "store/dataset.h"

bool is_dataset(const char *name) {
    return strlen(name) == DIRECTORY_NAME - 1 && strspn(name, "0123456789abcdef") == 16 && name[16] == '-' &&
           strspn(name + 17, "0123456789abcdef") == 16;
}

const char *store_next_directory(DIR *entries, uint64_t name) {
    const struct dirent *entry;
    do {
        entry = readdir(entries); // NOLINT(concurrency-mt-unsafe): the caller's own
    } while (entry != NULL && (!is_dataset(entry->d_name) || strtoull(entry->d_name, NULL, 16) != name));
    return entry == NULL ? NULL : entry->d_name;
}

enum parsed dataset_read_meta(int directory, unsigned char data[META_BYTES], meta_names *meta) {
    int fd = io_open(directory, "meta", O_RDONLY);
    if (fd < 0) {
        return PARSED_SHORT;
    }
    ssize_t got = io_read(fd, data, META_BYTES, 0, READ_ANY);
    io_drop(fd);
    return parse_meta(data, got < 0 ? 0 : (size_t)got, meta);
}

int dataset_write_meta(const bodhi_dataset *dataset, bool replace) {
    unsigned char data[META_BYTES];
    size_t size =
        write_meta(data, dataset->name, strlen(dataset->name), dataset->generation, dataset->generation_bytes);
    if (io_write_file(dataset->fd, "meta", data, size, replace ? FILE_REPLACE : FILE_NEW) || errno == EEXIST) {
        return BODHI_OK;
    }
    return bodhi_fail_system(errno, "write of meta", dataset->directory);
}

int dataset_make_directory(const bodhi_dataset *dataset) {
    return bodhi_io.mkdirat(dataset->store->fd, dataset->directory, 0700) == 0 || errno == EEXIST
               ? BODHI_OK
               : bodhi_fail_system(errno, "mkdir", dataset->directory);
}

void dataset_use(const bodhi_dataset *dataset) {
    if (!is_read_only(dataset) && bodhi_io.utimensat(dataset->fd, "meta", NULL, 0) != 0 && errno == ENOENT) {
        (void)dataset_write_meta(dataset, false); /* it was deleted by somebody who then found the dataset in use */
    }
}
