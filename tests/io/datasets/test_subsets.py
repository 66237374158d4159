"""What a run keeps of the atoms that it asked for: the next run of these, or of fewer, needs no origin."""

import os
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cache_data import N_ATOMS, N_FRAMES, make, only_dataset

import himach
from himach.errors import TrajectoryError
from himach.frame import DATA, FORCES, POSITIONS, VELOCITIES
from himach.io.datasets import writeback
from himach.io.datasets.listing import entries, evict_chosen, list_datasets
from himach.io.datasets.source import Source
from himach.io.datasets.subsets import list_subsets, open_kept_atoms, open_subset, subset_name
from himach.io.frame_source import ReadOptions, atom_ranges
from himach.io.store.cached_frames import base_name
from himach.io.store.quota import survey
from himach.io.store.store import Store
from himach.io.trajectories.origin import open_origin

ALL = np.arange(N_FRAMES)


class Rows(himach.Analysis):
    """Positions and velocities of some atoms; the first `fast` frames' velocities alone."""

    first: int = 0
    last: int = 5
    fast: int = 0

    def atoms(self, universe):
        return universe.atoms[self.first : self.last]

    def map(self, frame):
        atoms = np.arange(self.first, self.last)
        yield "x", frame.positions[atoms]
        yield "box", frame.box
        if frame.number < self.fast:
            yield "v", None if frame.velocities is None else frame.velocities[atoms]

    def reduce(self, key, series):
        return np.array(series.values).tobytes()


@pytest.fixture(autouse=True)
def _busy(monkeypatch):
    """No core is idle: whole frames are not kept."""
    monkeypatch.setattr(writeback, "idle_seconds", lambda: 0.0)


@pytest.fixture
def made(tmp_path):
    topology, trajectory = make(tmp_path)
    return trajectory, topology


def analysed(made, place, analysis=None, **options):
    """Return the outcome of a run, and bytes read from the origin and the cache."""
    result = himach.run(analysis or Rows(), *made, cache=place, progress=False, reuse="never", **options)
    return result.text(), result.record["bytes"]["origin"], result.record["bytes"]["cache"]


def source_of(made, store, atoms, keep=True):
    origin = open_origin(made[:1], made[1])
    return Source(origin, store.dataset("/sim", b"g"), keep, ReadOptions(np.array(atoms), POSITIONS), first=0)


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("name", ["md.trr", "md.xtc", "md.dcd"])
@pytest.mark.parametrize("fast", [0, N_FRAMES])
def test_the_next_run_reads_nothing_from_the_origin(tmp_path, name, fast):
    topology, trajectory = make(tmp_path, name=name)
    made, place = (trajectory, topology), tmp_path / "store"
    ranges = [(3, 40), (3, 40), (7, 9)]
    runs = [Rows(first=first, last=last, fast=fast) for first, last in ranges]
    plain = [analysed(made, "off", run)[0] for run in runs]
    found = [analysed(made, place, run) for run in runs]
    assert [text for text, *_ in found] == plain
    assert [origin > 0 for _, origin, _ in found] == [True, False, False]


RUNS = st.lists(
    st.tuples(
        st.sets(st.integers(0, N_ATOMS - 1), min_size=1, max_size=8),
        st.sets(st.integers(0, 15), min_size=1),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs=RUNS)
def test_any_runs_one_after_another(made, tmp_path_factory, runs):
    """The twin: sets of atoms that were read of each frame, and the origin itself."""
    store = Store(tmp_path_factory.mktemp("store"))
    truth = {frame.number: frame.positions.copy() for frame in open_origin(made[:1], made[1]).read(range(16))}
    kept: dict[int, list[set[int]]] = {}
    for atoms, numbers, whole in runs:
        source = source_of(made, store, sorted(range(N_ATOMS) if whole else atoms))
        wanted = set(range(N_ATOMS)) if whole else atoms
        asked = np.array(sorted(numbers))
        for number, frame in zip(asked, source.read(asked), strict=True):
            assert frame.number == number
            assert np.array_equal(frame.positions[sorted(wanted)], truth[number][sorted(wanted)])
        known = [number for number in numbers if any(wanted <= one for one in kept.get(number, ()))]
        unknown = [] if 0 in numbers else [number for number in numbers if number not in known]
        per_frame = open_origin(made[:1], made[1]).nbytes([0])
        assert per_frame * len(unknown) <= source.bytes_origin <= per_frame * (len(numbers) - len(known))
        source.close()
        for number in numbers:
            kept.setdefault(number, []).append(wanted)


def test_several_analyses_of_one_pass_keep_what_all_ask_for(made, tmp_path):
    place = tmp_path / "store"
    himach.run([Rows(), Rows(first=30, last=35)], *made, cache=place, progress=False)
    assert analysed(made, place, Rows(first=31, last=34))[1] == 0
    assert [len(one.atoms) for one in list_subsets(only_dataset(place, made[0]))] == [10]


def test_it_serves_while_the_origin_is_away(made, tmp_path):
    place = tmp_path / "store"
    text, *_ = analysed(made, place)
    os.rename(made[0], tmp_path / "away")
    assert analysed(made, place)[:2] == (text, 0)
    with pytest.raises(TrajectoryError, match="63 of 64 frames lie in no cache"):
        analysed(made, place, Rows(last=6))


def test_a_grown_trajectory_keeps_them_and_a_changed_one_does_not(tmp_path):
    topology, trajectory = make(tmp_path, 32)
    place, made = tmp_path / "store", (trajectory, topology)
    _, one, _ = analysed(made, place)
    make(tmp_path, 64)
    text, more, _ = analysed(made, place)
    assert (text, more) == (analysed(made, "off")[0], one)
    make(tmp_path, 64, seed=8)
    text, all_of_it, _ = analysed(made, place)
    assert (text, all_of_it) == (analysed(made, "off")[0], 2 * one)


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_damage_is_read_from_the_origin_and_mended(made, tmp_path, where):
    place = tmp_path / "store"
    text, *_ = analysed(made, place)
    (subset,) = list_subsets(only_dataset(place, made[0]))
    (segment,) = subset.dataset.path.glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[int(len(data) * where)] ^= 4
    segment.write_bytes(data)
    found = [analysed(made, place) for _ in range(2)]
    assert [each[0] for each in found] == [text, text]
    assert found[1][1] == 0


def test_what_is_no_list_of_its_atoms_is_not_used(made, tmp_path):
    place = tmp_path / "store"
    text, all_of_it, _ = analysed(made, place)
    (subset,) = list_subsets(only_dataset(place, made[0]))
    attached = subset.dataset.path / "x-atoms"
    for content in (b"", b"x", attached.read_bytes() + bytes(16), np.array([[0, 1 << 62]]).tobytes()):
        attached.write_bytes(content)
        assert list_subsets(only_dataset(place, made[0])) == []
    assert analysed(made, place)[:2] == (text, all_of_it * 63 // 64)


def test_frames_of_another_number_of_atoms_are_misses(made, tmp_path):
    store = Store(tmp_path / "store")
    dataset = store.dataset("/sim", b"g")
    subset = open_subset(dataset, np.array([1, 2, 3]))
    subset.dataset.write(5, 0.0, None, np.zeros((4, 3), dtype=np.float32))
    subset.dataset.flush()
    dataset = store.dataset("/sim", b"g")
    (kept,) = open_kept_atoms(dataset, np.array([1, 3]), N_ATOMS)
    assert list(kept.read([5], ReadOptions(np.array([1, 3]), POSITIONS))) == [None]


def test_a_field_that_is_read_late_leaves_the_positions_in_use_alone(made, tmp_path):
    store = Store(tmp_path / "store")
    list((first := source_of(made, store, [4, 9])).read(ALL))
    first.close()
    source = source_of(made, store, [4, 9])
    velocities = [frame.velocities[[4, 9]] for frame in open_origin(made[:1], made[1]).read(ALL)]
    for frame in source.read(ALL[1:]):
        assert frame.unread == VELOCITIES | FORCES | DATA
        frame.positions[:] = 7
        assert np.array_equal(frame.field(VELOCITIES)[[4, 9]], velocities[frame.number])
        assert np.all(frame.positions == 7)
    assert source.bytes_origin == 0


def test_it_is_listed_with_its_dataset_and_goes_with_it(made, tmp_path):
    place = tmp_path / "store"
    analysed(made, place)
    analysed(made, place, Rows(last=8))
    (one,) = entries(Store(place))
    assert [(each.atoms, each.n_alien) for each in one.subsets] == [(5, 64), (8, 63)]
    (listed,) = list_datasets(None, os.fspath(place)).datasets
    assert listed.subsets == [{"atoms": 5, "frames": 64}, {"atoms": 8, "frames": 63}]
    assert listed.nbytes == one.nbytes > sum(each.nbytes for each in one.subsets)
    assert not any(segment.pushed for segment in survey(place).segments)  # it makes room for others, as any alien
    evict_chosen(Store(place), one.name, aliens=True)
    assert entries(Store(place))[0].subsets == ()
    assert analysed(made, place)[1] > 0
    evict_chosen(Store(place), one.name)
    assert Store(place).directories() == []


def test_names():
    ranges = atom_ranges(np.array([0, 1, 2, 9]))
    name = subset_name("/sim [slices]", ranges)
    assert name.startswith("/sim [slices] [4 atoms ")
    assert base_name(name) == "/sim [slices]"
    assert base_name("/sim") == "/sim"


def test_no_room_for_it_fails_no_run(made, tmp_path):
    place = tmp_path / "store"
    analysed(made, place)
    shutil.rmtree(next(one.dataset.path for one in list_subsets(only_dataset(place, made[0]))))
    assert analysed(made, place)[0] == analysed(made, "off")[0]
