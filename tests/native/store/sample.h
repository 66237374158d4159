/* A store with one dataset, whose frames and files tests know. */
#pragma once

#include "../check.h"
#include "base/io.h"

enum { FRAMES = 20, ATOMS = 700 };
static const uint64_t all_frames = (UINT64_C(1) << FRAMES) - 1;

extern char home[128]; /* the store's path */
extern bodhi_store *store;
extern bodhi_dataset *run; /* "/run", generation "g" */
extern bodhi_calls real;   /* the system's; tests put their own into bodhi_io */

void make_home(void);
void remove_home(void);

/* A new store with an empty dataset; with all frames in one segment of natives; with the first of them as aliens
 * before that. */
void begin_empty(const char *what);
void begin(const char *what);
void begin_both(const char *what, int64_t aliens, int64_t segment_bytes);

void open_all(void);
void close_all(void);
void reopen(void);

/* What frame `number` holds at position i. */
float value_of(int64_t number, int64_t i);
int append(bodhi_writer *writer, int64_t number, int64_t atoms);

/* A writer of natives or aliens; frames first to last - 1 by it, each new. */
bodhi_writer *open_writer(int kind);
void append_frames(bodhi_writer *writer, int64_t first, int64_t last);

/* Frames first to last - 1 into segments of their own. */
void write_frames(int kind, int64_t first, int64_t last, int64_t segment_bytes);

/* Read all; a bit for each frame that is there. What is delivered is right. False: there is no reader. */
uint64_t read_all(const bodhi_read_options *options);
bool try_to_read_all(const bodhi_read_options *options, uint64_t *there);
bool is_there(int64_t number);
bodhi_place place_of(int64_t number);

/* Drop natives, each of which is there. */
void drop_frames(bodhi_dataset *dataset, const int64_t *numbers, int64_t n);

/* "/run" once more, as another process has it. */
bodhi_dataset *open_again(int flags);

/* The store's segments, of which there are so many; to be freed. */
bodhi_stored_segment *list_segments(int64_t n);

/* The path of a file in the directory of "/run", or of that (""), until the next call. */
const char *path_of(const char *name);

/* Where a file of a segment lies: one whose name begins and ends so; "" if there is none. */
char *file_of(char kind, const char *end);
int count_files(char kind);
int64_t size_of(const char *path);
void overwrite(const char *path, int64_t at, const void *data, size_t size);
void flip(const char *path, int64_t at); /* one bit */
