"""Parameters set as on a command line: of one analysis, of several, and of the stages that follow them."""

import pytest

import himach
from himach.runner.assignments import set_parameters
from himach.runner.rank import stages
from himach.runner.scripts import describe_analysis


class Mean(himach.Analysis):
    """Mean of what is long enough.

    Parameters
    ----------
    longest
        Longest stay in ps.
    """

    longest: float = 10.0
    digits: int = 2

    def reduce(self, key, series):
        return None


class Stays(himach.Analysis):
    """Every stay."""

    cutoff: float = 3.5
    digits: int = 1
    then = Mean

    def map(self, frame):
        yield 1, 1

    def reduce(self, key, series):
        yield key, 1


class WithInstance(Stays):
    then = Mean(longest=3)


class Needs(Mean):
    needed: int


class WithNeeds(Stays):
    then = Needs


class Comes(Stays):
    """Comes back to itself."""


Comes.then = Comes


def test_a_parameter_goes_to_the_first_stage_that_has_it():
    (made,) = set_parameters([Stays], ["cutoff=3.2", "longest=5", "digits=7"])
    assert made.settings() == {"cutoff": 3.2, "digits": 7}
    assert made.next_stage().settings() == {"longest": 5.0, "digits": 2}


@pytest.mark.parametrize("cls", [Stays, WithInstance])
def test_a_stage_goes_by_its_name(cls):
    (made,) = set_parameters([cls], ["Mean.digits=7"])
    assert made.digits == 1
    assert made.next_stage().digits == 7
    assert made.next_stage() is made.next_stage()


def test_what_was_written_stays_as_it_was():
    set_parameters([WithInstance], ["Mean.longest=8"])
    assert WithInstance.then.longest == 3
    assert set_parameters([WithInstance], [])[0].next_stage().longest == 3
    assert Stays.then is Mean


def test_a_stage_that_needs_a_value_gets_it():
    (made,) = set_parameters([WithNeeds], ["needed=3"])
    assert made.next_stage().needed == 3
    with pytest.raises(himach.UsageError, match="Needs needs a value for its parameter 'needed'"):
        set_parameters([WithNeeds], [])


class Taken(Mean):
    """Has no value of its own for what it shares with the stage before it."""

    cutoff: float
    digits: int = 9


class Gives(Stays):
    then = Taken


def test_a_stage_takes_what_it_has_no_value_for_from_the_one_before():
    assert Gives(cutoff=4, digits=5).next_stage().settings() == {"longest": 10, "digits": 9, "cutoff": 4}
    (made,) = set_parameters([Gives], ["cutoff=3.2"])
    assert made.next_stage().cutoff == 3.2
    (made,) = set_parameters([Gives], ["cutoff=3.2", "Taken.cutoff=7", "Taken.longest=8"])
    assert (made.cutoff, made.next_stage().cutoff, made.next_stage().longest) == (3.2, 7, 8)
    assert Gives.then is Taken
    assert "    cutoff   float, that of Gives" in describe_analysis(Gives).splitlines()


def test_analyses_that_are_there_twice_are_told_apart():
    one, other = set_parameters([Stays, Stays], ["Stays.cutoff=1", "Stays-2.cutoff=2"])
    assert (one.cutoff, other.cutoff) == (1, 2)


class Again(Mean):
    """Goes on as often as it is told to."""

    def map(self, frame):
        yield 0, 1


def test_one_class_may_be_in_several_stages():
    first, second, third = Again(), Again(longest=4), Again(longest=5)
    first.then, second.then = second, third
    assert stages(first) == [first, second, third]

    class Twice(Again):
        then = second

    (made,) = set_parameters([Twice], ["Twice.longest=7", "Again.longest=8"])
    assert [stage.longest for stage in stages(made)] == [7, 8, 8]
    second.then = first
    with pytest.raises(himach.UsageError, match="its stages come back to Again; a chain must end"):
        stages(first)
    with pytest.raises(himach.UsageError, match="its stages come back"):
        stages(Comes())


def test_a_chain_that_comes_back_is_left_for_the_run_to_refuse():
    (made,) = set_parameters([Comes], ["cutoff=1"])
    assert made.cutoff == 1
    assert made.then is Comes


@pytest.mark.parametrize(
    ("classes", "assignment", "message"),
    [
        ([Stays], "cutof=3", "Stays has no parameter 'cutof'; did you mean 'cutoff'"),
        ([Stays], "Mean.cutoff=3", "Mean has no parameter 'cutoff'"),
        ([Stays], "Meen.longest=3", "no analysis 'Meen' in this run; did you mean 'Mean'"),
        ([Stays], "longest=far", "Mean: parameter longest: 'far' is not a float"),
        ([Stays], "cutoff=nan", "Stays: parameter cutoff: nan is no number"),
        ([Mean, Stays], "cutoff=3", "whose parameter it is: -p 'Stays.cutoff=3'$"),
        ([Mean, Stays], "digits=3", "-p 'Mean.digits=3' or -p 'Stays.digits=3'$"),
        ([Mean, Stays], "cutof=3", "no analysis of this run has a parameter 'cutof'; did you mean 'cutoff'"),
        ([Stays], "cutoff", "NAME=VALUE"),
    ],
)
def test_what_does_not_fit_is_named(classes, assignment, message):
    with pytest.raises(himach.UsageError, match=message):
        set_parameters(classes, [assignment])


def test_stages_are_described():
    text = describe_analysis(WithInstance)
    assert "then Mean" in text
    assert "longest  float, default 3.0" in text
    assert "Longest stay in ps." in text
