# Packing and unpacking outside of a store, for tests, tools and benchmarks.


cdef class Packer:
    """Packs frames of one trajectory, as a writer does."""

    cdef packer state

    def __cinit__(self):
        memset(&self.state, 0, sizeof(self.state))

    def __dealloc__(self):
        packer_free(&self.state)

    def pack(self, const float[:, ::1] positions, uint32_t block_atoms=4096):
        """Blocks of positions (float32 (n_atoms, 3), Å) as bytes; None where the store would keep them raw."""
        cdef uint32_t n_atoms = positions.shape[0]
        cdef uint32_t block
        cdef bint done
        if positions.shape[0] < 1 or positions.shape[1] != 3 or block_atoms < 1:
            raise ValueError("positions must be float32 (n_atoms, 3) with at least one atom, and blocks hold atoms")
        with nogil:
            done = pack_positions(&self.state, &positions[0, 0], n_atoms, block_atoms)
        if not done:
            return None
        blocks, at = [], 0
        for block in range((n_atoms - 1) // block_atoms + 1):
            blocks.append((<char *>self.state.bytes)[at:at + self.state.sizes[block]])
            at += self.state.sizes[block]
        return blocks


def unpack(const uint8_t[::1] block, float[:, ::1] out, bint portable=False):
    """Decode a block to `out` (float32 (n_atoms, 3)); False if it is none of so many atoms.

    With `portable` it is done without vector instructions.
    """
    cdef bint done
    global packed_portable
    if out.shape[0] < 1 or out.shape[1] != 3:
        raise ValueError("out must be float32 (n_atoms, 3) with at least one atom")
    if block.shape[0] == 0:
        return False
    packed_portable = portable
    with nogil:
        done = packed_decode(&block[0], block.shape[0], out.shape[0], &out[0, 0])
    packed_portable = False
    return done
