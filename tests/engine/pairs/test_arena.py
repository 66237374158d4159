"""Memory for blocks."""

from himach.engine.pairs.block import Arena


def test_an_arena_gives_memory_apart_and_keeps_little_idle():
    arena = Arena()
    parts = [arena.take(nbytes) for nbytes in [0, 5, 100, 7, 40, 1, 3000, 64]]
    assert [len(part) for part in parts] == [0, 5, 100, 7, 40, 1, 3000, 64]
    for number, part in enumerate(parts):
        part[:] = number
    assert all((part == number).all() for number, part in enumerate(parts))
    pieces = {id(part.base): len(part.base) for part in parts if part.base is not None}
    assert sum(pieces.values()) <= 1.5 * sum(map(len, parts)) + 16 * len(parts)
