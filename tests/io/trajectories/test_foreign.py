"""Frames of every trajectory that MDAnalysisTests ships are those that MDAnalysis reads in it, to the last bit."""

import pytest

from himach.io.trajectories.origin import open_origin

from .foreign import Foreign, read_frames, trajectories

#: In one process, which reads them all by MDAnalysis once.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def orders(n_frames: int) -> list[range]:
    """Return choices of frames that begin at each frame in turn, go on by ones or twos, or run back."""
    some = {*range(min(n_frames, 12)), n_frames // 2, max(0, n_frames - 2), n_frames - 1}
    runs = [range(first, min(first + 3, n_frames)) for first in sorted(some)]
    return list(dict.fromkeys([*runs, range(0, n_frames, 2)[:5], range(n_frames)[::-1][:5]]))


def travelled(one: Foreign) -> list[str]:
    """Return where frames differ from MDAnalysis's, as a rank reads them that got the opened trajectory as a pickle."""
    origin = open_origin([one.path], one.topology, one.keywords)
    if origin.n_frames != len(one.frames):
        return [f"{one.name}: {origin.n_frames} frames, {len(one.frames)} for MDAnalysis"]
    wrong = []
    for order in orders(len(one.frames)):
        expected = [one.frames[number] for number in order]
        try:
            frames = read_frames(origin, order)
        except Exception as error:
            frames = [error]
        if frames != expected:
            wrong.append(f"{one.name} {list(order)}: {frames} is not {expected}")
    return wrong


@pytest.mark.nightly
def test_there_are_as_many_as_ever():
    found = trajectories()
    assert len(found) > 180
    assert sum(len(one.frames) > 1 for one in found) > 60
    assert {"GMS", "TRJ", "XTC", "TRR", "DCD", "NCDF", "XYZ", "PDB", "LAMMPSDUMP", "TRC", "TRZ", "HISTORY", "MOL2"} < {
        one.kind for one in found
    }


@pytest.mark.nightly
def test_every_first_frame_after_the_pickle():
    wrong = [text for one in trajectories() for text in travelled(one)]
    assert not wrong, "\n".join(wrong)
