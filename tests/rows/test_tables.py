"""Tables of rows on the disk of the first rank: the files, and what finish() and results see of them."""

import json
import pickle

import numpy as np
import pytest
from MDAnalysis.tests.datafiles import DCD, PSF

import himach
from himach.engine import rows as engine_rows
from himach.engine.pairs import emission
from himach.output import table_files
from himach.rows import tables
from himach.runner import estimates

#: What makes tables of a hundred rows long ones, of many chunks, of which a rank holds few.
SMALL = (
    (emission, "ROW_BITS", 2),
    (tables, "GATHERED_BYTES", 0),
    (engine_rows, "HELD_BYTES", 500),
    (table_files, "PIECE_CELLS", 7),
)


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    for module, name, _ in SMALL:
        monkeypatch.setattr(module, name, getattr(module, name))


class Long(himach.Analysis):
    """Rows whose table is a long one on every rank, if it is to be."""

    long: bool = True

    def setup(self, universe):
        for module, name, value in SMALL if self.long else ():
            setattr(module, name, value)


class Plain(Long):
    name = "plain"

    def map(self, frame):
        yield himach.Row(
            x=float(frame.positions[0, 0]), y=frame.positions[0, 1], n=frame.number, text=f"at {frame.number}"
        )


class Uneven(Long):
    """Rows that have other cells, and texts, here and there; none of some frames."""

    name = "uneven"
    end: str = ""

    def map(self, frame):
        if frame.number % 7 == 3:
            return None
        cells = {"x": float(frame.positions[0, 0]), "late": frame.number > 50}
        if frame.number % 3:
            cells["y"] = frame.positions[0, 1]
        if frame.number % 5 == 2:
            cells["text"] = 'a,"b' + self.end
        return himach.Row(**cells, whole=2**70 if frame.number == 20 else 1)


class Finished(Plain):
    """Parts of the table, arrays of it, and what is computed of it."""

    name = "finished"

    def finish(self, results):
        x = results["x"]
        details = [x.mean(), x.std(), x.min(), x.max()]
        rows = himach.Table({"time_ps": results["time_ps"], "other": himach.Column(x, "Å", estimate=True)})
        return {"rows": rows, "y": results["y"], "moments": {"told": details}, "tenth": {"x": x[5:60:10]}}

    def plot(self, outcome, axes):
        axes.plot(outcome["rows"]["time_ps"], 2 * outcome["rows"]["other"])


def files(out):
    """Return the content of all files but the record and plots, which may differ."""
    obtained = {path.relative_to(out): path.read_bytes() for path in out.rglob("*.*") if path.is_file()}
    return {path: data for path, data in obtained.items() if path.suffix in (".csv", ".npy")}


def analyses(**options):
    return [Plain(**options), Uneven(**options), Finished(**options)]


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("options", [{}, {"step": -3}, {"frames": [4, 5, 60]}, {"start": 3, "stop": 4}])
def test_files_are_those_of_a_table_in_memory(tmp_path, ranks, options):
    himach.run(analyses(long=False), DCD, PSF, out=tmp_path / "short", **options)
    himach.run(analyses(), DCD, PSF, out=tmp_path / "alone", **options)
    himach.run(analyses(), DCD, PSF, out=tmp_path / "several", ranks=ranks, **options)
    short = files(tmp_path / "short")
    assert len(short) == 6 and files(tmp_path / "alone") == short and files(tmp_path / "several") == short
    details = [json.loads((tmp_path / name / "run.json").read_text())["uncertainty"] for name in ("short", "several")]
    assert repr(details[0]) == repr(details[1]) and (tmp_path / "several" / "finished" / "finished.png").exists()


def test_cells_with_carriage_returns_quote_all_texts(tmp_path, ranks):
    himach.run(Uneven(long=False, end="\r"), DCD, PSF, out=tmp_path / "short")
    himach.run(Uneven(end="\r"), DCD, PSF, out=tmp_path / "several", ranks=ranks).write(tmp_path / "copy")
    assert b'"a,""b\r"' in files(tmp_path / "short").popitem()[1]
    assert files(tmp_path / "several") == files(tmp_path / "copy") == files(tmp_path / "short")


@pytest.mark.nightly
def test_files_of_kept_pairs_are_the_same(tmp_path, ranks):
    himach.run(analyses(long=False), DCD, PSF, out=tmp_path / "short")
    himach.run(analyses(), DCD, PSF, out=tmp_path / "first", pairs=tmp_path / "pairs", stop=41, ranks=ranks)
    done = himach.run(analyses(), DCD, PSF, out=tmp_path / "then", pairs=tmp_path / "pairs", ranks=ranks)
    assert done.record["reused"]["frames"] == 41
    again = himach.run(analyses(), DCD, PSF, out=tmp_path / "again", pairs=tmp_path / "pairs", step=-1, ranks=1)
    assert again.record["reused"]["frames"] == 98, again.record["reused"]
    assert files(tmp_path / "then") == files(tmp_path / "short") == files(tmp_path / "again")


def test_a_result_has_the_table(tmp_path, ranks):
    short = himach.run(Uneven(long=False), DCD, PSF)
    result = himach.run(Uneven(), DCD, PSF, out=tmp_path / "out", ranks=ranks)
    table = pickle.loads(pickle.dumps(result.outcome))
    assert isinstance(table["x"], np.memmap) and table.rows == short.outcome.rows
    assert repr(table) == repr(short.outcome) and table.units == short.outcome.units
    for name, cells in short.outcome.items():
        assert type(table[name]) is (list if isinstance(cells, list) else np.memmap)
        assert list(map(str, table[name])) == list(map(str, cells))
    assert result.plot().axes[0].lines
    result.write(tmp_path / "copy")
    assert files(tmp_path / "copy") == files(tmp_path / "out")


class Changing(Plain):
    def finish(self, results):
        results["x"] -= results["x"].min()
        assert isinstance(results["x"], np.memmap) and len(results["x"]) == results.rows == 98
        return {"table": {"x": himach.Column(results["x"], "nm"), "twice": 2 * results["x"]}, "frame": results["frame"]}


@pytest.mark.parametrize("several", [False, True])
def test_finish_computes_with_columns_on_the_disk(tmp_path, ranks, several):
    x = himach.run(Plain(long=False), DCD, PSF).outcome["x"]
    result = himach.run(Changing(), DCD, PSF, out=tmp_path / "out", ranks=ranks if several else None)
    np.testing.assert_array_equal(result["table"]["x"], x - x.min())
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "frame.npy"), np.arange(98))
    assert result["table"].units == {"x": "nm"} and (result["table"]["twice"] == 2 * (x - x.min())).all()


class Computed(Plain):
    def finish(self, results):
        fallen = np.maximum(60 - np.arange(98), 0) + results["x"] % 1
        return {"t": {"time_ps": results["time_ps"], "fallen": himach.Column(fallen, estimate=True)}}


def test_columns_in_memory_have_estimates_beside_times_on_the_disk(tmp_path, monkeypatch):
    starts = []
    for bins in (1 << 16, 49):
        monkeypatch.setattr(estimates, "BINS", bins)
        result = himach.run(Computed(), DCD, PSF, out=tmp_path / f"{bins}")
        starts.append(result.record["uncertainty"]["t"]["start_ps"] / result["t"]["time_ps"][-1])
    assert starts == pytest.approx([60 / 97] * 2, abs=0.1)


class Raising(Plain):
    def finish(self, results):
        raise ValueError("no such thing")


def test_an_error_of_finish_is_that_of_all_ranks(tmp_path, ranks):
    with pytest.raises(himach.HimachError, match="no such thing"):
        himach.run(Raising(), DCD, PSF, out=tmp_path / "out", ranks=ranks)
    assert not files(tmp_path / "out")


def test_without_files_the_table_is_in_memory(ranks):
    table = himach.run(Plain(), DCD, PSF, ranks=ranks).outcome
    assert isinstance(table["x"], np.ndarray) and table["y"].dtype == np.float32 and table.rows == 98


class Wide(Long):
    name = "wide"

    def map(self, frame):
        yield himach.Row(**{f"text{i}": "a" for i in range(200)})


def test_a_table_that_memory_has_no_place_for_needs_files(tmp_path, ranks):
    with pytest.raises(himach.UsageError, match=r"wide: its table has 98 rows, .* name a directory for it \(--out\)"):
        himach.run(Wide(), DCD, PSF, ranks=ranks, memory=1 << 20)
    assert himach.run(Wide(), DCD, PSF, ranks=ranks, memory=1 << 20, out=tmp_path / "out").outcome.rows == 98


class Wordy(himach.Analysis):
    name = "wordy"

    def map(self, frame):
        yield himach.Row(text="a" * 100_000)


def test_long_texts_are_told_by_their_length(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "GATHERED_BYTES", 8 << 20)
    with (
        pytest.warns(UserWarning, match=r"wordy: its table has some \d+,\d+ bytes a frame, .* \(out\)"),
        pytest.raises(himach.UsageError, match=r"wordy: its table has 98 rows, 0.0 GB, and 0.0 GB may be taken"),
    ):
        himach.run(Wordy(), DCD, PSF, memory=8 << 20)
    assert himach.run(Wordy(), DCD, PSF, memory=8 << 20, out=tmp_path / "out").outcome.rows == 98


def test_no_row_at_all_is_an_empty_table(tmp_path, ranks):
    with pytest.warns(UserWarning, match="map\\(\\) yielded nothing"):
        table = himach.run(Uneven(), DCD, PSF, frames=[3], out=tmp_path / "out").outcome
    assert table.rows == 0 and list(table) == ["time_ps", "frame"]
