"""Bytes of files around where they are read: any part of a file, whatever is missing, by several threads at once."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from himach.errors import TrajectoryError
from himach.io.trajectories.layouts import Content, Dcd, NetCdf, Trr
from himach.mount import block_cache as windows
from himach.mount.block_cache import BlockCache

from .mounts import ListedFrames, sample_frames, until, whole

N_FRAMES, N_ATOMS = 60, 25
FRAMES = sample_frames(N_FRAMES, N_ATOMS)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Blocks of few frames, of which few are kept."""
    monkeypatch.setattr(windows, "BLOCK_BYTES", 3 * 500)
    monkeypatch.setattr(windows, "KEPT_BYTES", 15 * 500)


def window_of(format_, frames):
    layout = format_(Content(N_FRAMES, N_ATOMS))
    return BlockCache(layout, frames.open), whole(layout, FRAMES)


def read(window, offset, size):
    return b"".join(piece.tobytes() for piece in window.read(offset, size))


@pytest.mark.parametrize("format_", [Trr, Dcd, NetCdf])
def test_any_part_is_that_of_the_file(format_):
    window, content = window_of(format_, ListedFrames(FRAMES))
    choose = random.Random(1)
    for _ in range(300):
        offset, size = choose.randrange(len(content) + 100), choose.choice([1, 4, 100, 5000, 10**6])
        assert read(window, offset, size) == content[offset : offset + size]
    window.close()


def test_in_order_each_frame_is_read_once():
    frames = ListedFrames(FRAMES)
    window, content = window_of(Trr, frames)
    assert b"".join(read(window, at, 700) for at in range(0, len(content), 700)) == content
    assert frames.read_so_far == N_FRAMES
    window.close()


@pytest.mark.parametrize("format_", [Trr, NetCdf])
def test_a_missing_frame_is_missing_alone(format_):
    frames = ListedFrames(FRAMES)
    frames.missing = {0, 7, 8, N_FRAMES - 1}
    window, content = window_of(format_, frames)
    layout = format_(Content(N_FRAMES, N_ATOMS))
    for number in range(N_FRAMES):
        at = layout.head_bytes + number * layout.frame_bytes
        if number in frames.missing:
            for offset in (at, at + layout.frame_bytes - 1):
                with pytest.raises(TrajectoryError, match=f"frame {number} is missing"):
                    window.read(offset, 1)
        else:
            assert read(window, at, layout.frame_bytes) == content[at : at + layout.frame_bytes]
    window.close()


def test_a_dataset_that_is_away_for_a_while(monkeypatch):
    monkeypatch.setattr(windows, "AGAIN_SECONDS", 0.0)
    frames = ListedFrames(FRAMES)
    frames.away = True
    window, content = window_of(Dcd, frames)
    for offset in (0, 3000):
        with pytest.raises(TrajectoryError, match="away"):
            window.read(offset, 10)
    frames.away = False
    assert read(window, 0, 10**9) == content
    window.close()


def test_many_at_once():
    frames = ListedFrames(FRAMES)
    window, content = window_of(NetCdf, frames)

    def subset(seed):
        choose = random.Random(seed)
        for _ in range(100):
            offset = choose.randrange(len(content))
            assert read(window, offset, 2000) == content[offset : offset + 2000]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(subset, range(16)))
    assert frames.opened == 1
    window.close()
    until(lambda: frames.closed == 1, "files close")


def test_who_waits_when_it_is_closed_is_told():
    frames = ListedFrames(FRAMES)
    frames.go_on.clear()
    window, _ = window_of(Trr, frames)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(window.read, 0, 10)
        until(lambda: frames.opened, "the thread reads")
        window.close()
        with pytest.raises(OSError, match="closed"):
            waiting.result()
    frames.go_on.set()
    until(lambda: frames.closed, "files close")


def test_memory_is_bounded():
    window, content = window_of(Trr, ListedFrames(FRAMES))
    for at in range(0, len(content), 100):
        window.read(at, 100)
        assert len(window._blocks) <= 6
    window.close()
