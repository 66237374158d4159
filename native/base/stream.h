/* Bytes to a file, in order, by a thread, past the page cache where the file allows that: what is written once, and by
 * the time that it is read lies on the disk, need not be copied into memory that a simulation wants for itself.
 *
 * One thread fills, and calls all of these. No byte is written twice: the blocks at which filling began and at which it
 * was pushed, which are not full, go through the page cache, and no others of the file do. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct stream stream;

/* NULL: memory is out, or no thread to be had. */
stream *stream_open(void);

/* Waits for what was handed over. */
void stream_close(stream *s);

/* What follows goes to `fd` from `offset` on; `direct` is that file with O_DIRECT, or -1, and the stream's to close. */
void stream_to(stream *s, int fd, int direct, uint64_t offset);

/* Room for `size` more bytes, which are filled before the next call; NULL: memory is out. May wait for the thread. */
unsigned char *stream_room(stream *s, size_t size);

/* Hand over all there is. */
void stream_push(stream *s);

/* Bytes written since this was asked last. */
uint64_t stream_written(stream *s);

/* Whether a write has failed; errno is why, and from *from on nothing was written, nor will be until stream_to(). */
bool stream_has_failed(stream *s, uint64_t *from);

/* Wait until nothing is to be done. */
void stream_wait(stream *s);
