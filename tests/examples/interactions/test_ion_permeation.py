import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import plain

import himach
from himach.examples import sample
from himach.examples.interactions.ion_permeation import (
    ABOVE,
    BELOW,
    ELSEWHERE,
    FILTER,
    IonPermeation,
    find_passages,
)

KCSA = {"top": "index 110 246 382 518", "bottom": "index 59 195 331 467", "radius": 2.5}
PORE = {"top": "resname GRA and prop z > 26", "bottom": "resname GRA and prop z < 20"}

regions = st.lists(st.sampled_from([BELOW, FILTER, ABOVE, ELSEWHERE]), min_size=1, max_size=60)


def passages_frame_by_frame(region):
    passages, bulk, entered = [], None, None
    for frame, code in enumerate(region):
        if code == FILTER:
            if entered is None:
                entered = frame
            continue
        if entered is not None and bulk is not None and code == -bulk:
            passages.append((entered, frame))
        bulk, entered = (code if code in (BELOW, ABOVE) else None), None
    return passages


@given(regions)
def test_passages_are_those_of_a_walk(region):
    entered, left = find_passages(np.array(region, dtype=np.float64))
    assert list(zip(entered.tolist(), left.tolist(), strict=True)) == passages_frame_by_frame(region)


def count(outcome, ion):
    events = outcome["events"]
    return [int(((events["ion"] == ion) & (events["direction"] == way)).sum()) for way in ("up", "down")]


def test_kcsa():
    outcome = plain.run(IonPermeation(**KCSA), *sample("kcsa"))
    assert count(outcome, 544) == [3, 0]
    assert count(outcome, 545) == [1, 3]
    assert list(outcome["counts"]["direction"]) == ["up", "down"]
    assert list(outcome["counts"]["events"]) == [4, 3]
    assert (outcome["events"]["entered_ps"] < outcome["events"]["left_ps"]).all()
    assert len(outcome["z"]["time_ps"]) == len(outcome["z"]["ion 544"]) == 101


def test_bulk_to_bulk_leaves_out_what_jumped():
    """One way down begins 45.6 Å above the filter's middle in a box of 87 Å: it may have come from below as well."""
    outcome = plain.run(IonPermeation(**KCSA, rule="bulk-to-bulk"), *sample("kcsa"))
    assert count(outcome, 544) == [3, 0]
    assert count(outcome, 545) == [1, 2]


@pytest.mark.parametrize("rule", ["pattern", "bulk-to-bulk"])
@pytest.mark.parametrize(("ions", "expected"), [("name K", [5, 0]), ("name CL", [0, 4])])
def test_nanopore(shared, ions, rule, expected):
    outcome = plain.run(IonPermeation(ions=ions, rule=rule, **PORE), *shared("nanopore"))
    assert list(outcome["counts"]["events"]) == expected


def test_passages_are_drawn_and_told():
    (axes,) = himach.run(IonPermeation(**KCSA), *sample("kcsa"), cache="off").plot().axes
    assert axes.get_xlabel() == "time / ns"
    assert 1000 < axes.get_xlim()[1] < 1100
    message = [text.get_text() for text in axes.get_legend().get_texts()]
    passages = ["4 passages up [1.09, 10.2] (95 %)", "3 passages down [0.619, 8.77] (95 %)"]
    assert message == ["ion 544", "ion 545", *passages]


def test_a_pore_that_breaks_on_the_way_is_refused():
    class Broken(IonPermeation):
        def map(self, frame):
            if frame.step == 2:
                frame.positions[self.pore_atoms[self.end_numbers == 0], 2] -= 60
            yield from super().map(frame)

    with pytest.raises(himach.UsageError, match="top is not above bottom"):
        plain.run(Broken(**KCSA), *sample("kcsa"), stop=4)
