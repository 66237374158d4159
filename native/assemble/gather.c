/* The frames of a round of assembling; see gather.h. */
#include "assemble/gather.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"

enum { ROW_BYTES = 12, HAS_BOX = 1, HAS_VELOCITIES = 2, HAS_FORCES = 4 };

/* Before the ids and vectors of a packed slice. */
typedef struct {
    int64_t number, rank, n;
    double time;
    float box[6];
    uint32_t has;
    uint32_t encoded; /* bytes that tell the ids */
} packed_head;

/* --- Rounds ------------------------------------------------------------------------------------------------------ */

int gather_open(int64_t n_atoms, int32_t n_processes, int32_t own, gather **opened) {
    if (n_atoms < 1 || n_atoms > UINT32_MAX || own < 0 || own >= n_processes) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "%lld atoms, process %d of %d", (long long)n_atoms, own, n_processes);
    }
    gather *g = calloc(1, sizeof *g);
    if (g == NULL || (g->parcels = calloc((size_t)n_processes, sizeof *g->parcels)) == NULL) {
        free(g);
        return bodhi_fail_memory();
    }
    g->n_atoms = n_atoms;
    g->memory.n_atoms = (size_t)n_atoms;
    g->n_processes = n_processes;
    g->own = own;
    *opened = g;
    return BODHI_OK;
}

void gather_close(gather *g) {
    if (g == NULL) {
        return;
    }
    for (int32_t i = 0; i < g->n_processes; i++) {
        free(g->parcels[i].bytes);
    }
    for (size_t i = 0; i < g->cover_capacity; i++) {
        cover_free(&g->covers[i]);
    }
    cover_release(&g->memory);
    free(g->parcels);
    free(g->covers);
    free(g->numbers);
    free(g->assembler);
    free(g->place);
    free(g->encoded.bytes);
    free(g->ids);
    free(g);
}

static bool reserve_frames(gather *g, size_t n) {
    if (n <= g->capacity) {
        return true;
    }
    free(g->numbers);
    free(g->assembler);
    free(g->place);
    g->numbers = malloc(n * sizeof *g->numbers);
    g->assembler = malloc(n * sizeof *g->assembler);
    g->place = malloc(n * sizeof *g->place);
    g->capacity = g->numbers != NULL && g->assembler != NULL && g->place != NULL ? n : 0;
    return g->capacity > 0;
}

int gather_begin(gather *g, const int64_t *numbers, const int32_t *assembler, size_t n) {
    g->n = g->at = g->next = g->n_covers = 0;
    g->ended = false;
    for (int32_t i = 0; i < g->n_processes; i++) {
        g->parcels[i].size = 0;
    }
    for (size_t i = 0; i < n; i++) {
        if (assembler[i] < 0 || assembler[i] >= g->n_processes || (i > 0 && numbers[i] <= numbers[i - 1])) {
            return bodhi_fail(BODHI_ERROR_ARGUMENT, "the frames of a round do not ascend, or are no process's");
        }
    }
    size_t own = 0;
    for (size_t i = 0; i < n; i++) {
        own += assembler[i] == g->own;
    }
    if (!reserve_frames(g, n) || !cover_reserve(&g->memory, own)) {
        return bodhi_fail_memory();
    }
    memcpy(g->numbers, numbers, n * sizeof *numbers);
    memcpy(g->assembler, assembler, n * sizeof *assembler);
    for (size_t i = 0; i < n; i++) {
        g->place[i] = -1;
    }
    g->n = n;
    return BODHI_OK;
}

/* Go to the frame of a number: often the next one. False: it is not of this round. */
static bool find_frame(gather *g, int64_t number) {
    if (g->at + 1 < g->n && g->numbers[g->at + 1] == number) {
        g->at++;
        return true;
    }
    ARRAY_SEARCH(g->at, g->n, i, g->numbers[i] < number);
    return g->at < g->n && g->numbers[g->at] == number;
}

/* --- Packing ----------------------------------------------------------------------------------------------------- */

static void put(parcel *p, const void *data, size_t size) {
    memcpy(p->bytes + p->size, data, size);
    p->size += size;
}

static int pack_slice(gather *g, parcel *p, int64_t rank, const bodhi_frame *slice) {
    const float *vectors[COVER_FIELDS] = {slice->positions, slice->velocities, slice->forces};
    size_t n = (size_t)slice->n_atoms;
    if (!ids_write(&g->encoded, slice->ids, n) ||
        !ARRAY_GROW(p->bytes, p->capacity,
                    p->size + sizeof(packed_head) + g->encoded.size + n * COVER_FIELDS * ROW_BYTES)) {
        return bodhi_fail_memory();
    }
    packed_head head = {.number = slice->number,
                        .rank = rank,
                        .n = slice->n_atoms,
                        .time = slice->time,
                        .encoded = (uint32_t)g->encoded.size,
                        .has = (slice->box != NULL ? HAS_BOX : 0U) | (slice->velocities != NULL ? HAS_VELOCITIES : 0U) |
                               (slice->forces != NULL ? HAS_FORCES : 0U)};
    if (slice->box != NULL) {
        memcpy(head.box, slice->box, sizeof head.box);
    }
    put(p, &head, sizeof head);
    put(p, g->encoded.bytes, g->encoded.size);
    for (unsigned k = 0; k < COVER_FIELDS; k++) {
        if (vectors[k] != NULL) {
            put(p, vectors[k], n * ROW_BYTES);
        }
    }
    return BODHI_OK;
}

static uint64_t count_vectors(const packed_head *head) {
    return 1U + ((head->has & HAS_VELOCITIES) != 0) + ((head->has & HAS_FORCES) != 0);
}

/* Take the head of a packed slice, behind which its ids and vectors lie. False: cut short, or damaged. */
static bool unpack_head(const unsigned char *bytes, size_t size, size_t *at, packed_head *head) {
    if (size - *at < sizeof *head) {
        return false;
    }
    memcpy(head, bytes + *at, sizeof *head);
    *at += sizeof *head;
    return head->n >= 1 && head->n <= UINT32_MAX && head->encoded <= size - *at && head->encoded % sizeof(float) == 0 &&
           (uint64_t)head->n * count_vectors(head) * ROW_BYTES <= size - *at - head->encoded;
}

/* The slice of a head. The vectors are aligned: all that is packed is of whole multiples of four bytes. */
static bodhi_frame unpack_slice(const gather *g, packed_head *head, const unsigned char *bytes) {
    float *vectors = (float *)(void *)(uintptr_t)bytes;
    bodhi_frame slice = {.number = head->number,
                         .time = head->time,
                         .n_atoms = head->n,
                         .box = (head->has & HAS_BOX) != 0 ? head->box : NULL,
                         .ids = g->ids,
                         .positions = vectors};
    vectors += head->n * 3;
    if ((head->has & HAS_VELOCITIES) != 0) {
        slice.velocities = vectors;
        vectors += head->n * 3;
    }
    slice.forces = (head->has & HAS_FORCES) != 0 ? vectors : NULL;
    return slice;
}

/* --- Slices ------------------------------------------------------------------------------------------------------ */

static cover *new_cover(gather *g, int64_t number) {
    size_t before = g->cover_capacity;
    if (!ARRAY_GROW(g->covers, g->cover_capacity, g->n_covers + 1)) {
        return NULL;
    }
    memset(g->covers + before, 0, (g->cover_capacity - before) * sizeof *g->covers);
    g->place[g->at] = (int64_t)g->n_covers;
    cover *c = &g->covers[g->n_covers++];
    cover_begin(c, number, &g->memory, g->n_covers - 1);
    return c;
}

int gather_add(gather *g, int64_t rank, const bodhi_frame *slice) {
    if (slice->n_atoms < 1 || slice->ids == NULL || slice->positions == NULL || !find_frame(g, slice->number)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "frame %lld is not of this round, or no slice",
                          (long long)slice->number);
    }
    if (g->assembler[g->at] != g->own) {
        return pack_slice(g, &g->parcels[g->assembler[g->at]], rank, slice);
    }
    cover *c = g->place[g->at] >= 0 ? &g->covers[g->place[g->at]] : new_cover(g, slice->number);
    if (c == NULL || (!cover_add(c, rank, slice) && c->no_memory)) {
        return bodhi_fail_memory();
    }
    return BODHI_OK;
}

int gather_read(gather *g, int64_t rank, bodhi_reader *reader, int64_t *missed) {
    bodhi_frame slice;
    int status = BODHI_OK;
    while (status == BODHI_OK) {
        status = bodhi_reader_next(reader, &slice);
        if (status == BODHI_MISS || (status == BODHI_OK && slice.ids == NULL)) {
            *missed = slice.number;
            return BODHI_MISS;
        }
        status = status == BODHI_OK ? gather_add(g, rank, &slice) : status;
    }
    return status;
}

int gather_take(gather *g, const unsigned char *bytes, size_t size) {
    packed_head head;
    for (size_t at = 0; at < size;) {
        bool whole = unpack_head(bytes, size, &at, &head);
        if (whole && !ARRAY_FIT(g->ids, g->id_capacity, (size_t)head.n)) {
            return bodhi_fail_memory();
        }
        if (!whole || !ids_read(bytes + at, head.encoded, g->ids, (size_t)head.n)) {
            return bodhi_fail(BODHI_ERROR_ARGUMENT, "slices that came from another process are cut short or damaged");
        }
        at += head.encoded;
        bodhi_frame slice = unpack_slice(g, &head, bytes + at);
        at += (size_t)head.n * count_vectors(&head) * ROW_BYTES;
        int status = gather_add(g, head.rank, &slice);
        if (status != BODHI_OK) {
            return status;
        }
    }
    return BODHI_OK;
}

/* --- Frames ------------------------------------------------------------------------------------------------------ */

int gather_write(gather *g, bodhi_writer *writer, int64_t *number) {
    while (g->next < g->n && g->place[g->next] < 0) {
        g->next++;
    }
    if (g->next == g->n) {
        return BODHI_END;
    }
    cover *c = &g->covers[g->place[g->next]];
    *number = c->frame.number;
    int status = BODHI_MISS;
    if (g->ended || cover_end(c)) {
        g->ended = true;
        status = bodhi_append(writer, &c->frame);
        if (status < BODHI_OK && status != BODHI_ERROR_CONFLICT) {
            return status;
        }
    }
    g->ended = false;
    g->next++;
    return status;
}

const char *gather_why(const gather *g) {
    size_t at = g->next;
    while (at > 0 && g->place[at - 1] < 0) {
        at--;
    }
    return at > 0 ? g->covers[g->place[at - 1]].why : "";
}
