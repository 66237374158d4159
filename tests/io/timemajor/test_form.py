"""The time-major form against frames read one by one: the same bytes for any atoms, frames, damage, eviction, kill."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

sys.path.insert(0, str(Path(__file__).parent))
from forms import N_ATOMS, SPAN, Frames, bits, fill, lay_out, prefer_tracks, read, turn

from himach.frame import POSITIONS, Needs
from himach.io.dataset.source import Source
from himach.io.frame_source import ReadOptions
from himach.io.store.quota import survey
from himach.io.store.store import Store, StoreFullError
from himach.io.timemajor.form import open_form
from himach.io.timemajor.holding import NodeFrames, frames_held, holding
from himach.io.timemajor.layout import CHUNK_FRAMES, SUFFIX, ChunkLayout, ChunkStamps, span_for
from himach.io.timemajor.making import forget_frames, remove_form, unmade
from himach.io.timemajor.tracks import bytes_of_frame
from himach.locks import locked

ATOMS = some.sets(some.integers(0, N_ATOMS - 1), min_size=1, max_size=N_ATOMS).map(sorted)


@pytest.fixture
def tracks_preferred(monkeypatch):
    prefer_tracks(monkeypatch)


@given(
    offsets=some.sets(some.integers(0, 999), min_size=1, max_size=40).map(sorted),
    data=some.data(),
)
def test_stamps_come_back_to_the_last_bit(offsets, data):
    n, first = len(offsets), data.draw(some.integers(0, 1 << 40))
    times = np.array(data.draw(some.lists(some.floats(width=64), min_size=n, max_size=n)))
    boxed = np.array(data.draw(some.lists(some.booleans(), min_size=n, max_size=n)))
    boxes = np.array(data.draw(some.lists(some.floats(width=32), min_size=6 * n, max_size=6 * n)), np.float32)
    stamps = ChunkStamps(np.array(offsets) + first, times, boxed, boxes.reshape(n, 6))
    encoded = stamps.encode(first)
    told = ChunkStamps.parse(encoded, first)
    assert told is not None
    assert told.numbers.tolist() == stamps.numbers.tolist()
    assert told.times.tobytes() == times.tobytes()
    assert told.boxed.tolist() == boxed.tolist()
    assert told.boxes[boxed].tobytes() == stamps.boxes[boxed].tobytes()
    layout = ChunkLayout(10, 1 << 20)
    chunk, own = divmod(first, layout.span)
    if not own:
        assert told.key(layout, chunk) == stamps.key(layout, chunk)
    assert abs(stamps.nbytes - encoded.nbytes) < 12


@given(some.binary(max_size=300))
def test_other_bytes_are_no_stamps_and_no_layout(content):
    rows = np.frombuffer(content[: len(content) // 12 * 12], np.float32).reshape(-1, 3)
    assert ChunkStamps.parse(rows, 0) is None
    assert ChunkLayout.parse(content) is None
    magic = np.frombuffer(b"hmTracks" + content[: (len(content) + 8) // 12 * 12 - 8], np.uint8)
    if len(magic) % 12 == 0 and len(magic):
        ChunkStamps.parse(magic.view(np.float32).reshape(-1, 3), 0)  # anything, but no exception


def test_a_layout_comes_back_and_another_version_does_not():
    layout = ChunkLayout(47_681, 2048)
    assert ChunkLayout.parse(layout.encode()) == layout
    assert ChunkLayout.parse(layout.encode().replace(b'"version": 1', b'"version": 2')) is None
    assert ChunkLayout.parse(None) is None


@pytest.mark.parametrize("apart", [1, 2, 3, 7, 64])
def test_a_chunk_has_about_as_many_frames_of_any_node(apart):
    span = span_for(10_000, 5, 5 + apart * 9_999)
    assert CHUNK_FRAMES / 1.5 <= span / apart <= CHUNK_FRAMES * 1.5


@settings(max_examples=40)
@given(
    atoms=ATOMS,
    natives=some.sets(some.integers(0, 80), min_size=1),
    aliens=some.sets(some.integers(0, 80)),
    numbers=some.one_of(
        some.lists(some.integers(0, 80), unique=True),
        some.builds(lambda a, b, c: list(range(a, b, c)), some.integers(0, 40), some.integers(0, 81), some.just(3)),
        some.builds(lambda a, b: list(range(b, a, -1)), some.integers(0, 40), some.integers(0, 80)),
    ),
    grid=some.booleans(),
    boxed=some.sampled_from([0.0, 0.5, 1.0]),
    block=some.sampled_from([1, 8, 50]),
)
def test_any_atoms_of_any_frames_are_those_of_the_frames(
    tmp_path_factory, atoms, natives, aliens, numbers, grid, boxed, block
):
    place = tmp_path_factory.mktemp("store")
    frames = Frames(7, grid, boxed)
    dataset = fill(place, frames, natives, aliens - natives)
    lay_out(dataset, block_atoms=block)
    assert turn(dataset) == sorted({number // SPAN for number in natives})
    expected, _ = read(frames, dataset, atoms, numbers, with_tracks=False)
    with pytest.MonkeyPatch.context() as patch:
        for forced in (False, True):
            if forced:
                prefer_tracks(patch)
            found, source = read(frames, dataset, atoms, numbers)
            assert found == expected
            if forced:
                assert source._tracks.n_frames == len(natives & set(numbers))
    assert turn(dataset) == []
    shutil.rmtree(place)


def test_what_a_run_does_not_say_beforehand_is_read_frame_by_frame(tmp_path, tracks_preferred):
    from himach.frame import FIELDS, VELOCITIES, Needs
    from himach.io.dataset.source import Source

    frames = Frames()
    dataset = fill(tmp_path, frames, range(20))
    lay_out(dataset)
    turn(dataset)
    atoms = np.array([3, 4])
    assert Source(frames, dataset, needs=Needs(None))._tracks is None
    assert Source(frames, dataset)._tracks is None
    source = Source(frames, dataset, needs=Needs(atoms, FIELDS))
    assert len(list(source.read(np.arange(20)))) == 20
    assert source._tracks.n_frames == 0
    source = Source(frames, dataset, needs=Needs(atoms, 1))
    for frame in source.read(np.arange(5)):
        assert frame.unread == FIELDS & ~1
        late = source.late(frame.number, VELOCITIES)
        assert late.number == frame.number
        assert late.velocities is None
    assert source._tracks.n_frames == 5
    list(source.read(np.arange(5, 9)))  # velocities are read with every frame by now
    assert source._tracks.n_frames == 5


def test_frames_that_came_later_go_into_the_chunks_that_are_there(tmp_path, tracks_preferred):
    frames = Frames(grid=False)
    dataset = fill(tmp_path, frames, range(0, 40, 2))
    lay_out(dataset)
    assert turn(dataset) == [0, 1, 2]
    dataset = fill(tmp_path, frames, range(1, 20, 2))
    assert turn(dataset) == [0, 1]
    found, source = read(frames, dataset, [0, 9, 49], range(40))
    assert found == read(frames, dataset, [0, 9, 49], range(40), with_tracks=False)[0]
    assert source._tracks.n_frames == 30


def test_frames_that_only_the_form_has_stay_in_it(tmp_path, tracks_preferred):
    frames = Frames()
    dataset = fill(tmp_path, frames, range(20))
    lay_out(dataset)
    turn(dataset)
    for segment in dataset.segments():
        dataset.evict(segment["id"])
    dataset = fill(tmp_path, frames, range(20, 36))
    assert turn(dataset) == [2]  # to make the one between anew would be to drop it first
    open_form(dataset).stand_alone()
    assert list(frames_held(dataset)) == list(range(36))
    found, source = read(frames, dataset, [1, 2, 30], range(36))
    assert frames.asked == []
    assert source._tracks.n_frames == 24
    assert found == read(frames, dataset, [1, 2, 30], range(36), with_tracks=False)[0]


def test_a_node_holds_what_it_has_as_tracks(tmp_path):
    frames = Frames()
    dataset = fill(tmp_path, frames, range(0, 40, 2), [1, 41])
    lay_out(dataset)
    turn(dataset)
    atoms = np.array([5, 40])
    assert holding(dataset, atoms) is dataset  # as long as nothing was dropped
    for segment in dataset.segments():
        dataset.evict(segment["id"])
    open_form(dataset).stand_alone()
    held = holding(dataset, atoms)
    assert isinstance(held, NodeFrames)
    assert holding(dataset, None) is dataset
    for chosen in (range(3, 50), range(48, 2, -1), range(0, 60, 3), range(50, 0, -7)):
        native, alien = (np.zeros(-(-len(chosen) // 64), np.uint64) for _ in range(2))
        held.mark(chosen, native, alien)
        bits = np.unpackbits(native.view(np.uint8), bitorder="little")[: len(chosen)]
        assert [number for number, bit in zip(chosen, bits, strict=True) if bit] == [
            number for number in chosen if number < 40 and number % 2 == 0
        ]
        assert not alien.any()


@pytest.mark.parametrize("seed", range(12))
def test_damage_costs_a_reading_and_is_mended(tmp_path, tracks_preferred, seed):
    chance = random.Random(seed)
    frames = Frames(seed, grid=seed % 2 == 0)
    dataset = fill(tmp_path, frames, range(64))
    lay_out(dataset)
    turn(dataset)
    form = open_form(dataset)
    (segment,) = form.dataset.path.glob("*.seg")
    content = bytearray(segment.read_bytes())
    for _ in range(chance.randrange(1, 6)):
        content[chance.randrange(64, len(content))] ^= 1 << chance.randrange(8)
    segment.write_bytes(content)
    for atoms in ([1], [0, 17, 33, 49], list(range(N_ATOMS))):
        found, _ = read(frames, dataset, atoms, range(64))
        assert found == read(frames, dataset, atoms, range(64), with_tracks=False)[0]
    assert frames.asked == []
    turn(dataset)
    assert list(unmade(dataset, open_form(dataset))) == []
    found, source = read(frames, dataset, list(range(N_ATOMS)), range(64))
    assert source._tracks.n_frames == 64
    assert found == read(frames, dataset, list(range(N_ATOMS)), range(64), with_tracks=False)[0]


def test_tracks_of_other_frames_are_not_taken(tmp_path, tracks_preferred):
    """Of a chunk that was made twice, stamps of one and tracks of the other are no chunk."""
    frames = Frames()
    dataset = fill(tmp_path / "a", frames, range(8))
    other = fill(tmp_path / "b", Frames(1), range(8))
    for one in (dataset, other):
        lay_out(one, block_atoms=50)
        turn(one)
    stamps, tracks = (open_form(one).dataset for one in (dataset, other))
    number = int(open_form(other).layout.tracks_record(0, 0))
    stamps.drop([number], native=True)
    writer = stamps.writer(8)
    (frame,) = tracks.read([number])
    writer.append(number, frame.time, np.ascontiguousarray(frame.positions), None, None, None)
    writer.close()
    dataset = Store(tmp_path / "a").dataset("made up", b"1")
    found, source = read(frames, dataset, [4], range(8))
    assert found == read(frames, dataset, [4], range(8), with_tracks=False)[0]
    assert source._tracks.n_frames == 0
    assert turn(dataset) == [0]
    assert read(frames, dataset, [4], range(8))[1]._tracks.n_frames == 8


def test_eviction_beside_reading_costs_nothing_but_bytes(tmp_path, tracks_preferred):
    frames = Frames()
    dataset = fill(tmp_path, frames, range(64))
    lay_out(dataset)
    turn(dataset)
    expected = read(frames, dataset, [2, 40], range(64), with_tracks=False)[0]
    source = Source(frames, dataset, needs=Needs(np.array([2, 40]), POSITIONS))
    found = []
    for frame in source.read(np.arange(64)):
        found.append(bits(frame, [2, 40]))
        if frame.number == 20:
            assert remove_form(Store(tmp_path).dataset("made up", b"1"))
    assert found == expected
    assert SPAN <= source._tracks.n_frames < 64
    assert open_form(dataset) is None
    assert not remove_form(dataset)


def test_a_form_that_is_made_anew_beside_reading_is_not_taken_for_the_one_that_was_there(tmp_path, tracks_preferred):
    frames = Frames()
    dataset = fill(tmp_path, frames, range(128))
    lay_out(dataset)
    turn(dataset)
    expected = read(frames, dataset, [2, 40], range(128), with_tracks=False)[0]
    source = Source(frames, dataset, needs=Needs(np.array([2, 40]), POSITIONS))
    found = []
    for begin in range(0, 128, 8):
        found += [bits(frame, [2, 40]) for frame in source.read(np.arange(begin, begin + 8))]
        if begin == 32:
            other = Store(tmp_path).dataset("made up", b"1")
            assert remove_form(other)
            lay_out(other, span=4)
            turn(other)
    assert found == expected
    assert source._tracks.n_frames == 48
    assert list(unmade(dataset, open_form(dataset))) == []  # a reader of the old one drops nothing of the new one


def test_the_form_of_what_had_the_name_before_is_none(tmp_path, tracks_preferred):
    """Its frames were evicted, and it stayed, as a run was reading from it."""
    dataset = fill(tmp_path, Frames(), range(32))
    lay_out(dataset)
    turn(dataset)
    dataset.store.remove(dataset.path.name)
    frames = Frames(1)
    dataset = fill(tmp_path, frames, range(32))
    assert open_form(dataset) is None
    found, source = read(frames, dataset, [3], range(32))
    assert found == read(frames, dataset, [3], range(32), with_tracks=False)[0]
    assert turn(dataset) == [0]
    found, source = read(frames, dataset, [3], range(32))
    assert found == read(frames, dataset, [3], range(32), with_tracks=False)[0]
    assert source._tracks.n_frames == 32


def test_the_form_goes_first_and_nothing_goes_for_it(tmp_path):
    frames = Frames(grid=False)
    older = Store(tmp_path).dataset("older", b"1")
    for number in range(200):
        frame = frames.frame(number)
        older.write(number, frame.time, frame.box, frame.positions, native=True)
    older.close()
    older.attach("origin.json", b"{}")
    dataset = fill(tmp_path, frames, range(1000))
    dataset.attach("origin.json", b"{}")
    dataset.store.set_quota(survey(tmp_path).used + (300 << 10))
    with pytest.raises(StoreFullError):
        turn(dataset)
    assert len(older.native) == 200  # it was not used for longest
    Store(tmp_path).dataset("older", b"1").refresh()
    assert len(Store(tmp_path).dataset("older", b"1").native) == 200
    dataset.store.set_quota(0)
    turn(dataset)
    order = [segment.derived for segment in survey(tmp_path).segments]
    assert order == sorted(order, reverse=True)
    assert any(order)
    assert not any(segment.pushed for segment in survey(tmp_path).segments)
    store = Store(tmp_path)
    store.set_quota(survey(tmp_path).used + (100 << 10))
    more = store.dataset("more", b"1", segment_bytes=1 << 20)
    for number in range(800):
        frame = frames.frame(number)
        more.write(number, frame.time, frame.box, frame.positions)
    more.close()
    assert not any(segment.derived for segment in survey(tmp_path).segments)
    assert len(Store(tmp_path).dataset("older", b"1").native) == 200
    assert len(Store(tmp_path).dataset("made up", b"1").native) == 1000


@pytest.mark.parametrize("way", ["packed", "raw"])
@pytest.mark.parametrize("atoms", [[5], [0, 20_000], list(range(0, 47_000, 500)), list(range(9_000, 17_000))])
def test_the_bytes_of_a_frame_are_about_those_that_are_read(tmp_path, way, atoms):
    dataset = Store(tmp_path).dataset("x", packed=way == "packed")
    steps = np.random.default_rng(1).integers(0, 9000, (47_681, 3)).astype(np.float32)
    dataset.write(0, 0.0, None, (steps * np.float32(0.001)) * np.float32(10), native=True)
    dataset.close()
    dataset.refresh()
    asked = np.array(atoms, dtype=np.int64)
    reading = dataset.read([0], ReadOptions(asked))
    assert next(reading) is not None
    (place,) = dataset.locate(np.array([0]))
    assert place is not None
    assert 0.6 < bytes_of_frame(place[3], 47_681, asked) / reading.nbytes < 1.7


MAKING = """
import sys
sys.path.insert(0, sys.argv[1])
from forms import turn
from himach.io.store.store import Store
turn(Store(sys.argv[2]).dataset("made up", b"1"), memory=3000)
"""


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_moment_and_made_by_two_at_once(tmp_path, tracks_preferred, seed):
    chance = random.Random(seed)
    frames = Frames(seed)
    dataset = fill(tmp_path, frames, range(400))
    lay_out(dataset)
    command = [sys.executable, "-c", MAKING, str(Path(__file__).parent), str(tmp_path)]
    expected = read(frames, dataset, [3, 30], range(400), with_tracks=False)[0]
    for _ in range(4):
        makers = [subprocess.Popen(command) for _ in range(2)]
        time.sleep(0.25 + chance.random() * 0.3)
        for maker in makers:
            os.kill(maker.pid, signal.SIGKILL)
            maker.wait()
        there = Store(tmp_path).dataset("made up", b"1")
        assert read(frames, there, [3, 30], range(400))[0] == expected
    makers = [subprocess.Popen(command) for _ in range(2)]
    assert [maker.wait() for maker in makers] == [0, 0]
    there = Store(tmp_path).dataset("made up", b"1")
    found, source = read(frames, there, [3, 30], range(400))
    assert found == expected
    assert source._tracks.n_frames == 400
    assert frames.asked == []


def test_two_that_make_do_not_wait_where_they_need_not(tmp_path):
    dataset = fill(tmp_path, Frames(), range(3))
    with locked(dataset.path) as first, locked(dataset.path, wait=False) as second:
        assert (first, second) == (True, False)
    with locked(dataset.path, wait=False) as alone:
        assert alone


def test_frames_that_are_dropped_while_a_chunk_is_made_are_in_none(tmp_path, monkeypatch):
    from himach.io.timemajor import making as made

    frames = Frames()
    dataset = fill(tmp_path, frames, range(16))
    lay_out(dataset)
    whole = made.Maker._turned

    def turned(self, *arguments):
        Store(tmp_path).dataset("made up", b"1").drop([5], native=True)
        return whole(self, *arguments)

    monkeypatch.setattr(made.Maker, "_turned", turned)
    assert turn(dataset) == []
    assert not len(open_form(dataset).chunks())
    monkeypatch.setattr(made.Maker, "_turned", whole)
    assert turn(dataset) == [0]
    assert open_form(dataset).stamps(0).numbers.tolist() == [number for number in range(16) if number != 5]


def test_frames_that_are_another_trajectory_s_go_with_their_chunks(tmp_path, tracks_preferred):
    frames = Frames()
    dataset = fill(tmp_path, frames, range(64))
    lay_out(dataset)
    turn(dataset)
    forget_frames(dataset, [])
    forget_frames(dataset, [17, 18, 50])
    assert open_form(dataset).chunks().tolist() == [0, 2]
    dataset.drop([17, 18, 50], native=True)
    assert turn(dataset) == [1, 3]
    assert read(frames, dataset, [7], range(64))[1]._tracks.n_frames == 61


def test_the_name_of_a_form_is_no_dataset(tmp_path):
    from himach.io.dataset.listing import entries, evict_chosen
    from himach.io.dataset.lookup import find

    dataset = fill(tmp_path, Frames(), range(20))
    lay_out(dataset)
    turn(dataset)
    store = Store(tmp_path)
    assert find(store, [dataset.name + SUFFIX]) == []
    (entry,) = entries(store)
    assert (entry.name, entry.native, entry.layout) == ("made up", 20, "both")
    assert 0 < entry.time_major < entry.nbytes
    evict_chosen(store, "made up")
    assert store.directories() == []
