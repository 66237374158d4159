/* The frames of a round of assembling; see gather.h. */
#include "assemble/gather.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "net/wire.h"

/* Of a packed slice, behind which lie the frame as it goes over the wire and its ids; multiples of four bytes, so that
 * all of it is aligned. */
typedef struct {
    int64_t rank;
    uint64_t frame_bytes, id_bytes;
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
    free(g->frames);
    free(g->encoded.bytes);
    free(g->ids);
    free(g);
}

int gather_begin(gather *g, const int64_t *numbers, const int32_t *assembler, size_t n) {
    g->n = g->at = g->next = g->n_covers = 0;
    for (int32_t i = 0; i < g->n_processes; i++) {
        g->parcels[i].size = 0;
    }
    if (!ARRAY_FIT(g->frames, g->capacity, n)) {
        return bodhi_fail_memory();
    }
    size_t own = 0;
    for (size_t i = 0; i < n; i++) {
        if (assembler[i] < 0 || assembler[i] >= g->n_processes || (i > 0 && numbers[i] <= numbers[i - 1])) {
            return bodhi_fail(BODHI_ERROR_ARGUMENT, "the frames of a round do not ascend, or are no process's");
        }
        g->frames[i] = (round_frame){.number = numbers[i], .cover = -1, .assembler = assembler[i]};
        own += assembler[i] == g->own;
    }
    size_t before = g->cover_capacity;
    if (!cover_reserve(&g->memory, own) || !ARRAY_GROW(g->covers, g->cover_capacity, own)) {
        return bodhi_fail_memory();
    }
    if (g->cover_capacity > before) {
        memset(g->covers + before, 0, (g->cover_capacity - before) * sizeof *g->covers);
    }
    g->n = n;
    return BODHI_OK;
}

/* Go to the frame of a number: often the next one. False: it is not of this round. */
static bool find_frame(gather *g, int64_t number) {
    if (g->at + 1 < g->n && g->frames[g->at + 1].number == number) {
        g->at++;
        return true;
    }
    ARRAY_SEARCH(g->at, g->n, i, g->frames[i].number < number);
    return g->at < g->n && g->frames[g->at].number == number;
}

/* --- Packing ----------------------------------------------------------------------------------------------------- */

/* The ids are encoded, which makes a few bytes of the atoms of whole molecules. */
static int pack_slice(gather *g, parcel *p, int64_t rank, const bodhi_frame *slice) {
    bodhi_frame frame = *slice;
    frame.ids = NULL;
    packed_head head = {.rank = rank, .frame_bytes = wire_frame_bytes(&frame)};
    if (!ids_write(&g->encoded, slice->ids, (size_t)slice->n_atoms) ||
        !ARRAY_GROW(p->bytes, p->capacity, p->size + sizeof head + head.frame_bytes + g->encoded.size)) {
        return bodhi_fail_memory();
    }
    head.id_bytes = g->encoded.size;
    unsigned char *at = p->bytes + p->size;
    memcpy(at, &head, sizeof head);
    wire_write_frame(at + sizeof head, &frame);
    memcpy(at + sizeof head + head.frame_bytes, g->encoded.bytes, g->encoded.size);
    p->size += sizeof head + head.frame_bytes + g->encoded.size;
    return BODHI_OK;
}

/* Take a packed slice but for its ids. False: cut short, or damaged. */
static bool unpack_slice(unsigned char *bytes, size_t size, packed_head *head, bodhi_frame *slice) {
    if (size < sizeof *head) {
        return false;
    }
    memcpy(head, bytes, sizeof *head);
    size -= sizeof *head;
    return head->frame_bytes <= size && head->id_bytes <= size - head->frame_bytes && head->id_bytes % IDS_UNIT == 0 &&
           wire_parse_frame(bytes + sizeof *head, head->frame_bytes, slice);
}

/* --- Slices ------------------------------------------------------------------------------------------------------ */

/* The cover of a frame of this process. */
static cover *cover_of(gather *g, round_frame *frame) {
    if (frame->cover < 0) {
        frame->cover = (int64_t)g->n_covers++;
        cover_begin(&g->covers[frame->cover], frame->number, &g->memory, (size_t)frame->cover);
    }
    return &g->covers[frame->cover];
}

int gather_add(gather *g, int64_t rank, const bodhi_frame *slice) {
    if (slice->n_atoms < 1 || slice->ids == NULL || slice->positions == NULL || !find_frame(g, slice->number)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "frame %lld is not of this round, or no slice",
                          (long long)slice->number);
    }
    round_frame *frame = &g->frames[g->at];
    if (frame->assembler != g->own) {
        return pack_slice(g, &g->parcels[frame->assembler], rank, slice);
    }
    cover *c = cover_of(g, frame);
    return cover_add(c, rank, slice) || !c->no_memory ? BODHI_OK : bodhi_fail_memory();
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

int gather_take(gather *g, unsigned char *bytes, size_t size) {
    packed_head head;
    bodhi_frame slice;
    for (size_t at = 0; at < size; at += sizeof head + head.frame_bytes + head.id_bytes) {
        bool whole = unpack_slice(bytes + at, size - at, &head, &slice);
        if (whole && !ARRAY_FIT(g->ids, g->id_capacity, (size_t)slice.n_atoms)) {
            return bodhi_fail_memory();
        }
        if (!whole ||
            !ids_read(bytes + at + sizeof head + head.frame_bytes, head.id_bytes, g->ids, (size_t)slice.n_atoms)) {
            return bodhi_fail(BODHI_ERROR_ARGUMENT, "slices that came from another process are cut short or damaged");
        }
        slice.ids = g->ids;
        int status = gather_add(g, head.rank, &slice);
        if (status != BODHI_OK) {
            return status;
        }
    }
    return BODHI_OK;
}

/* --- Frames ------------------------------------------------------------------------------------------------------ */

int gather_write(gather *g, bodhi_writer *writer, int64_t *number) {
    while (g->next < g->n && g->frames[g->next].cover < 0) {
        g->next++;
    }
    if (g->next == g->n) {
        return BODHI_END;
    }
    cover *c = &g->covers[g->frames[g->next].cover];
    *number = c->frame.number;
    int status = BODHI_MISS;
    if (cover_end(c)) {
        status = bodhi_append(writer, &c->frame);
        if (status < BODHI_OK && status != BODHI_ERROR_CONFLICT) {
            return status;
        }
    }
    g->next++;
    return status;
}

const char *gather_why(const gather *g) {
    size_t at = g->next;
    while (at > 0 && g->frames[at - 1].cover < 0) {
        at--;
    }
    return at > 0 ? g->covers[g->frames[at - 1].cover].why : "";
}
