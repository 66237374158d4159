"""Keywords of MDAnalysis: mistyped ones are refused by name, legal ones of every format are not."""

import pytest
from MDAnalysis import _PARSERS, _READERS
from MDAnalysisTests import datafiles as data
from support.io_samples import make

from himach.errors import UsageError
from himach.io.trajectories.keywords import check, keyword_names
from himach.io.trajectories.origin import open_origin
from himach.io.universe.topology import load_topology

#: What readers and parsers take beside dt and time_offset, in their signatures or from their **kwargs.
LEGAL = {
    "XTC": {"convert_units", "refresh_offsets", "sub"},
    "TRR": {"convert_units", "refresh_offsets", "sub"},
    "NCDF": {"n_atoms", "mmap"},
    "TRJ": {"n_atoms"},
    "TRZ": {"n_atoms"},
    "LAMMPS": {"timeunit", "lengthunit"},
    "LAMMPSDUMP": {"lammps_coordinate_convention", "unwrap_images", "additional_columns"},
    "DATA": {"n_atoms", "atom_style"},
    "PDB": {"n_atoms", "model_offset"},
    "H5MD": {"convert_units", "driver", "comm"},
    "CHEMFILES": {"chemfiles_format"},
}
LEGAL_OF_PARSERS = {
    "PDB": {"force_chainids_to_segids"},
    "TPR": {"tpr_resid_from_one"},
    "DATA": {"atom_style"},
    "ITP": {"include_dir", "infer_system"},
}


def test_what_readers_and_parsers_take_is_found():
    for classes, legal in ((_READERS, LEGAL), (_PARSERS, LEGAL_OF_PARSERS)):
        for name, expected in legal.items():
            assert expected <= keyword_names(classes[name]) | {"n_atoms"}, name


@pytest.mark.parametrize(
    ("keyword", "told"),
    [
        ("dtt", "did you mean 'dt'"),
        ("time_ofset", "did you mean 'time_offset'"),
        ("to_gues", "did you mean 'to_guess'"),
        ("additional_columns", r"XTCReader, Universe"),
    ],
)
def test_unknown_ones_are_refused_by_name(keyword, told, tmp_path):
    with pytest.raises(UsageError, match=rf"no keyword '{keyword}'.*{told}"):
        open_origin([make(tmp_path / "a.xtc", [0, 1])], keywords={keyword: 2})


def test_those_of_the_topology_are_known(tmp_path):
    trajectory = make(tmp_path / "a.xtc", [0, 1], n_atoms=10)
    open_origin([data.LAMMPSdcd2], data.LAMMPSdata2, {"format": "LAMMPS", "atom_style": "id resid type charge x y z"})
    open_origin([trajectory], data.PDB_icodes, {"force_chainids_to_segids": True})
    with pytest.raises(UsageError, match="force_chainids_to_segids"):
        open_origin([trajectory], data.GRO, {"force_chainids_to_segids": True})
    check({"HEAVY_H": 1}, [_READERS["XTC"]], [_PARSERS["ITP"]])  # defines a word of the file


def test_one_of_any_file_will_do(tmp_path):
    single, several = data.GRO, data.XTC
    with pytest.raises(UsageError, match="refresh_offsets"):
        open_origin([single], keywords={"refresh_offsets": True})
    assert open_origin([single, several], keywords={"refresh_offsets": True, "dt": 1.0}).n_frames == 11


@pytest.mark.parametrize("value", ["abc", 0, -1.0, float("nan"), float("inf"), True, [1]])
@pytest.mark.parametrize("path", [data.DCD, data.XTC])
def test_dt_is_a_number_above_0(value, path):
    with pytest.raises(UsageError, match=r"keyword dt=.*a number of ps above 0"):
        open_origin([path], keywords={"dt": value})


def test_other_values_that_cannot_be_meant():
    with pytest.raises(UsageError, match=r"time_offset='x'.*a number of ps"):
        open_origin([data.XTC], keywords={"time_offset": "x"})
    for value in ("bonds", 5):
        with pytest.raises(UsageError, match=r"to_guess=.*a list of names"):
            open_origin([data.XTC], data.GRO, {"to_guess": value})
    origin = open_origin([data.XTC], data.GRO)
    with pytest.raises(UsageError, match="no topology that MDAnalysis reads"):
        load_topology(data.GRO, origin, {"topology_format": 5})
