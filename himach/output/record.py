"""The record of a run: what run.json says.

The classes are plain dicts with checked keys; `Record(...)` takes every field by name.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from himach.analysis import Analysis
from himach.parameters import recorded


class AnalysisRecord(TypedDict):
    """One analysis and its parameters; `then` is its next stage.

    `source` is what the command line calls it (absolute path and class of a script, a built-in's name, or module and
    class); where it has no such name, that is None and `unrepeatable` says why. `methods`,
    `references` and `caption` are words for a paper, as `himach.runner.outcome.methods_text` has them.
    """

    name: str
    parameters: dict[str, Any]
    then: NotRequired[AnalysisRecord]
    source: NotRequired[str | None]
    unrepeatable: NotRequired[str]
    methods: NotRequired[str]
    references: NotRequired[list[str]]
    caption: NotRequired[str]


class DatasetRecord(TypedDict):
    """The dataset: its path (several where files follow one another), frames in it, atoms, fingerprint."""

    path: str | list[str]
    frames: int
    atoms: int
    fingerprint: str


class SystemRecord(TypedDict):
    """What was simulated.

    Attributes
    ----------
    atoms
        How many there are.
    residues
        How many there are of each kind, the most frequent first: protein, nucleic acid, water, others by their name.
        Empty where the topology names no residues.
    box
        Of the first frame that was read: three lengths in Å, three angles in degrees; None without one.
    time_ps
        Of the first and the last selected frame.
    dt_ps
        Time between selected frames; None where it is uneven, or there is one frame.
    """

    atoms: int
    residues: dict[str, int]
    box: list[float] | None
    time_ps: list[float]
    dt_ps: float | None


class FaultyFrames(TypedDict):
    """Frames that were not read as they should have been.

    Attributes
    ----------
    damaged
        Copies in the cache that were damaged; these frames were read from the trajectory.
    missing
        Frames that were selected and that no node had: they are not part of the outcome.
    """

    damaged: int
    missing: int


class Assignment(TypedDict):
    """Frames by the rule that gave them to their readers."""

    native: int
    alien: int
    residue: int


class Reused(TypedDict):
    """How many of the frames were mapped by earlier runs, whose pairs were kept; and why those, or why not more."""

    frames: int
    reason: str


class Bytes(TypedDict):
    """Bytes read from the cache and from the origin, and bytes of pairs that travelled between ranks."""

    cache: int
    origin: int
    shuffled: int


class Mpi(TypedDict):
    """What the ranks did by MPI until the record was drawn up, each figure that of the rank with the most.

    Attributes
    ----------
    collectives
        Calls in which all ranks, those of a node, or the first ones of nodes take part.
    messages
        Messages to single ranks.
    received
        Bytes that a rank received in collectives, and of objects in any call; pairs that are shuffled are not among
        them.
    """

    collectives: int
    messages: int
    received: int


class Seconds(TypedDict):
    """Wall time by phase; `total` is up to the outcome, `whole` with writing and drawing."""

    startup: float
    zazen: float
    map: float
    shuffle: float
    reduce: float
    finish: float
    total: float
    write: float
    draw: float
    whole: float


class Request(TypedDict):
    """What a run was asked for, and by what: enough to ask for it again, and to see what is different then.

    Beside it stand the options, as `himach.opening.options.RunOptions.recorded` has them.

    Attributes
    ----------
    trajectory, topology
        As they were asked for, with absolute paths; a dataset by its name.
    universe
        Keywords for MDAnalysis; ``{"python": text}`` for a value that JSON has no form of.
    selected
        The frame numbers, if they were asked for by number, as ``0,5,10-20``; else None.
    pairs_directory
        Where pairs are kept, if a place was named.
    topology_digest
        Of the topology of the Universe that the run was given; None if it was given none.
    command, directory
        The words of the command (None in a notebook), and the folder in which the run worked.
    code_folders
        Folders by which scripts and modules of the user's own were imported.
    digests
        SHA-256 (hex) by file: code of the user's own, the topology (of an ensemble each member's), and files that
        parameters name or that analyses opened before map().
    versions
        Of python, numpy, MDAnalysis and the MPI library (None for one process alone), of other installed packages
        that have an analysis of the run (None where it tells none), and of those that wrote its figures and tables.
    """

    trajectory: list[str]
    topology: str | None
    universe: dict[str, Any]
    selected: str | None
    pairs_directory: str | None
    topology_digest: str | None
    command: list[str] | None
    directory: str
    code_folders: list[str]
    digests: dict[str, str]
    versions: dict[str, str | None]


class Planning(TypedDict):
    """What a plan of another run needs to know of this one; seconds and bytes.

    Attributes
    ----------
    ranks_per_node
        The fewest and the most.
    hosts
        Machines that the nodes are on: fewer than nodes where several nodes are on one.
    cores, node_memory
        Cores that the first rank may use, and its node's memory.
    share_frames
        Frames that each node mapped; of many nodes, the first ones'.
    frame_seconds
        Quantiles of the times of frames in map(), from the least to the most, of those that were timed.
    pair_bytes
        About how many bytes of pairs went into the shuffle, by neighbouring parts of the key space.
    spilled
        Bytes that went to disks for want of memory.
    zazen
        Seconds of the first node for its sets and for the rounds, and how many reductions of bitmaps there were.
    ranks
        Columns of a table of ranks, of many ranks some: rank, node, ``startup``, of that ``opening``, ``zazen``,
        ``cache_bytes``, ``origin_bytes``, ``memory`` (high-water mark), and what `himach.engine.clock.RankTimes` has.
    totals
        By column its sum, median and largest value over all ranks.
    """

    ranks_per_node: list[int]
    hosts: int
    cores: int
    node_memory: int
    share_frames: list[int]
    frame_seconds: list[float]
    pair_bytes: list[int]
    spilled: int
    zazen: dict[str, float]
    ranks: dict[str, list[Any]]
    totals: dict[str, dict[str, float]]


class MeanRecord(TypedDict):
    """The mean of a column in time; NaN where there is none, or no interval.

    Attributes
    ----------
    mean, low, high
        In the unit of the column.
    n_eff, blocks, method
        As `himach.uncertainty.Estimate` has them.
    start_ps
        Time from which the column is equilibrated; None of a table without times.
    cut
        Whether what is before was left out.
    halves
        How much the second half of what counts is above the first: difference, low, high (`himach.uncertainty.halves`);
        None where there is too little of it to tell.
    """

    mean: float
    low: float
    high: float
    n_eff: float
    blocks: int
    method: str
    start_ps: float | None
    cut: bool
    halves: list[float] | None


class Uncertainty(TypedDict):
    """How sure a table is, by its column with the least `n_eff`; and the means of its columns.

    Attributes
    ----------
    half_widths
        By column half the width of its widest interval, or of that of its mean; of values that are not 0, as intervals
        of what was never seen tell nothing of how long it was looked for. NaN where a value has no interval.
    """

    method: str
    level: float
    blocks: int
    n_eff: float
    start_ps: float | None
    replicas: int | None
    means: dict[str, MeanRecord]
    half_widths: dict[str, float]


class MemberRecord(TypedDict):
    """A member of an ensemble: what was asked, as `himach.Member` has it, and what came of it.

    Attributes
    ----------
    frames, reused
        Frames that were reduced, and those of them that earlier runs had mapped.
    fingerprint
        Of its dataset; None if it failed.
    system
        What was simulated; not there if it failed.
    error
        Why it failed; None: it did not.
    """

    name: str
    trajectory: list[str]
    topology: str | None
    group: str | None
    start: int | None
    stop: int | None
    step: int | None
    metadata: dict[str, Any]
    frames: int
    reused: int
    fingerprint: str | None
    error: str | None
    system: NotRequired[SystemRecord]


class Times(TypedDict):
    """When a run began and ended: local time with its offset, ISO 8601."""

    start: str
    end: str


class Record(Request):
    """What a run was and did.

    Attributes
    ----------
    himach
        Version.
    analyses
        The analyses with their parameters.
    dataset
        What was read from.
    system
        What was simulated. Of an ensemble, `ensemble` has each member's.
    frames
        Frames that were reduced: mapped by this run, and by earlier ones.
    faulty
        Frames that were not read as they should have been.
    reused
        Those mapped by earlier ones.
    ranks, nodes
        How many of each took part.
    assignment, bytes, seconds
        How frames were given to readers, bytes moved, wall time.
    pairs
        Pairs emitted by map().
    errors
        What went wrong without ending the run.
    warnings
        What was warned of, on any rank, each text once.
    date, times
        The day on which the run began; when it began and ended.
    units
        Units of columns, by table (of several analyses by ``LABEL/TABLE``) and column.
    uncertainty
        How sure tables are, by table as in `units`; not there with ``--confidence off``.
    files
        Files written, relative to the directory of run.json.
    ensemble
        Of a run over many simulations, its members in their order.
    live
        Of a run over frames that still come: how many updates there were; of an engine also its address, the dataset
        in which frames are kept, frames left out, and how often and for how many seconds it was paused.
    planning
        What plans of other runs need to know.
    mpi
        How often ranks called MPI; not there of an ensemble.
    """

    himach: str
    analyses: list[AnalysisRecord]
    dataset: DatasetRecord
    system: NotRequired[SystemRecord]
    frames: int
    faulty: FaultyFrames
    reused: Reused
    ranks: int
    nodes: int
    assignment: Assignment
    bytes: Bytes
    seconds: Seconds
    pairs: int
    errors: list[str]
    warnings: list[str]
    date: str
    times: Times
    units: NotRequired[dict[str, dict[str, str]]]
    uncertainty: NotRequired[dict[str, Uncertainty]]
    files: NotRequired[list[str]]
    ensemble: NotRequired[list[MemberRecord]]
    live: NotRequired[dict[str, Any]]
    planning: NotRequired[Planning]
    mpi: NotRequired[Mpi]


def analysis_record(analysis: Analysis) -> AnalysisRecord:
    """Return the entry of an analysis, with its later stages."""
    settings = {name: recorded(value) for name, value in analysis.settings().items()}
    entry = AnalysisRecord(name=analysis.label(), parameters=settings)
    following = analysis.next_stage()
    if following is not None:
        entry["then"] = analysis_record(following)
    return entry
