"""`convert()`: all ranks rewrite a trajectory: whole, without jumps, centred, wrapped, fitted.

In each round every rank gets consecutive frames, in the order of ranks. It makes them whole and reports how far atoms
jumped in them. It adds the jumps of earlier frames, then centres, wraps, fits and encodes the frames, and writes them
after those of the ranks before. The layout of the file depends on the frames only.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, fields
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.checkpoint.sources import versions
from himach.conversion.frame_formats import Format, choose_format, serial_writer
from himach.conversion.frames import Reader, Steps
from himach.conversion.options import ConvertOptions
from himach.conversion.target_files import (
    ConversionTarget,
    Converted,
    cannot_write,
    check_target,
    make_file,
    parse_dataset_name,
    remove_files,
    removing_leftovers,
    writing,
)
from himach.errors import UsageError, checks_arguments
from himach.files import content_digest, whole_file
from himach.frame import FIELDS
from himach.io.datasets.frame_steps import UNIT, PartialFrame, Shift, add, total
from himach.io.datasets.member import Member
from himach.io.datasets.opening import OpenFrames, open_frames
from himach.io.datasets.request import TransformOptions
from himach.io.trajectories.layouts import Content
from himach.io.trajectories.urls.byte_file import local_path
from himach.io.trajectories.urls.url_names import absolute, public_name, strip_scheme
from himach.ranks.collective import on_first_rank, run_collectively, warn_once
from himach.ranks.communicator import Communicator, World
from himach.ranks.launch.preload import interrupts_wait
from himach.ranks.launch.stop_requests import StopRequests
from himach.ranks.process_exit import promised_rank, under_launcher
from himach.ranks.progress import Progress, is_watched
from himach.ranks.quiet import quiet_ranks
from himach.ranks.ranks import Ranks
from himach.runner.commands import check_ranks, on_ranks
from himach.runner.run_record import dataset_record
from himach.selection import frames_text

PathLike = str | os.PathLike[str]
#: Maximum frames that a rank holds at a time, and maximum bytes of their positions.
AT_ONCE, BYTES_AT_ONCE = 64, 16 << 20
#: Packages that affect positions; which others are loaded depends on how ranks are started.
MOVING = ("MDAnalysis", "numpy")


@checks_arguments
def convert(
    trajectory: PathLike | Sequence[PathLike] | None = None,
    topology: PathLike | None = None,
    *,
    ensemble: PathLike | Sequence[Member] | None = None,
    out: PathLike,
    select: str = "all",
    whole: bool = False,
    nojump: bool = False,
    cluster: str | None = None,
    center: str | None = None,
    wrap: str | None = None,
    fit: str | None = None,
    reference: PathLike | None = None,
    start: int | str | None = None,
    stop: int | str | None = None,
    step: int | str | None = None,
    frames: Any = None,
    ranks: int | Ranks | None = None,
    cache: PathLike = "auto",
    topology_out: PathLike | None = None,
    record: PathLike | None = None,
    force: bool = False,
    progress: bool | None = None,
    universe: Mapping[str, Any] | None = None,
) -> Converted:
    """Write a trajectory anew, in one pass by all ranks; what is done to frames is done in the order of the arguments.

    Parameters
    ----------
    trajectory, topology
        As of `himach.run`.
    ensemble
        In place of a trajectory many simulations, as of `himach.run`; ``{member}`` in the names of files stands for
        the name of each.
    out
        The file to write, or ``himach://NAME``, a dataset of this node's store. XTC, TRR, DCD and NetCDF are written
        by all ranks, what else MDAnalysis writes, and datasets, by one.
    select
        Selection of the atoms to write.
    whole
        Whether to make molecules whole, by the topology's bonds; where it has none, they are guessed.
    nojump
        Whether to follow atoms through the periodic boundary, from the first frame on.
    cluster
        Selection of atoms whose molecules are moved to one another by whole periods.
    center
        Selection of the atoms that are moved to the middle of the box; all others move with them.
    wrap
        What is moved into the box by whole periods: ``"atoms"``, ``"residues"`` or ``"molecules"``.
    fit
        Selection of the atoms that are superposed on the reference; all others move with them.
    reference
        Structure file that has the same selection; None: the first frame.
    start, stop, step, frames
        Choice of frames, as of `himach.run`.
    ranks, cache, progress, universe
        As of `himach.run`.
    topology_out
        Where the topology of the atoms goes; None: beside `out`, as PDB, unless that is one.
    record
        A file for what was read and done, as JSON.
    force
        Whether to replace files that are there.

    Returns
    -------
    Converted
        With ``path``, ``topology``, ``frames`` and ``atoms``; ``n_bytes``, ``seconds``, and what was ``done``; of an
        ensemble ``members``.

    Raises
    ------
    UsageError
        If an argument cannot be used, or a file is there already.
    TrajectoryError
        If the data cannot be used.
    HimachError
        If the file cannot be written: then what was there before is there still. If members failed: then the files of
        the others are there.

    Notes
    -----
    The bytes are the same for any number of ranks. XTC files are those of MDAnalysis's writer.

    Examples
    --------
    >>> himach.convert(trajectory, topology, out="ca.xtc", select="name CA", stop=3).frames
    3
    """
    kwargs = dict(locals())
    paths = [trajectory] if isinstance(trajectory, str | os.PathLike) else trajectory or []
    values: dict[str, Any] = {item.name: kwargs[item.name] for item in fields(ConvertOptions) if item.name in kwargs}
    for name in ("out", "reference", "topology_out", "record"):
        values[name] = None if kwargs[name] is None else Path(kwargs[name])
    values["topology"] = None if topology is None else Path(strip_scheme(topology))
    values["transform"] = TransformOptions(whole, nojump, cluster, center, wrap, fit, values.pop("reference")).steps()
    options = ConvertOptions(
        **{**values, "cache": os.fspath(cache)},
        trajectories=[Path(strip_scheme(path)) for path in paths],
        keywords=dict(universe or {}),
        selection=select,
        quiet=not (is_watched() if progress is None else progress),
    )
    check_ranks(ranks)
    started = 0 if under_launcher() or ranks is None else ranks
    with quiet_ranks(promised_rank() if not started else 0), removing_leftovers(options.files if started else []):
        return on_ranks(partial(convert_here, options=options), started)


def convert_here(world: World, options: ConvertOptions) -> Converted:
    """Convert as one of the ranks of `world` (collective)."""
    if options.ensemble is not None:
        from himach.conversion.ensemble import convert_members

        return convert_members(world, options, convert_here)
    assert options.out is not None and options.topology_out is not None
    out, topology_out = options.out, options.topology_out
    on_first_rank(world.comm, options.check_files)
    opened = open_frames(world, options)
    try:
        inputs = [Path(path) for path in opened.origin.paths]  # also of a dataset given by name
        for path in options.files:
            on_first_rank(world.comm, partial(check_target, path, inputs, True))
        result = _convert(world, options, opened, (out, topology_out))
        if options.record is not None:
            on_first_rank(world.comm, partial(_write_record, options.record, options, opened, result, world.comm.size))
        return result
    finally:
        opened.close()


def _convert(world: World, options: ConvertOptions, opened: OpenFrames, paths: tuple[Path, Path]) -> Converted:
    """Write the files; return the result."""
    comm, first, start = world.comm, opened.first, time.perf_counter()
    steps = run_collectively(comm, partial(Steps, opened, options))
    dataset = parse_dataset_name(paths[0])
    files = paths[1:] if dataset else tuple(dict.fromkeys(paths))
    n_frames, n_atoms = len(opened.frames), len(steps.atoms)
    content = Content(
        n_frames, n_atoms, first.velocities is not None, first.forces is not None, has_box=first.box is not None
    )
    fmt = None if dataset else run_collectively(comm, partial(choose_format, paths[0], content, opened, steps.warnings))
    warn_once(comm, steps.warnings)
    fields = FIELDS if fmt is None else fmt.fields
    reader = Reader(world, opened, steps, fields, options.transform_options.nojump, fmt is None or fmt.with_data)
    with ExitStack() as stack:
        created: list[Path] = []  # on the first rank
        stack.enter_context(StopRequests(None, partial(remove_files, created)))
        stack.callback(remove_files, created)

        def make() -> list[Path]:
            created.extend(map(make_file, files))
            return created

        names = on_first_rank(comm, make, share=True)
        apart = len(world.nodes) > 1
        targets = run_collectively(
            comm, lambda: [ConversionTarget(*pair, apart) for pair in zip(files, names, strict=True)]
        )
        for target in targets:
            stack.callback(target.close)
        if paths[0] != paths[1]:  # otherwise the PDB file is its own topology
            on_first_rank(comm, partial(_write_topology, steps, targets[-1]))
        with Progress(comm, n_frames, sys.stderr, quiet=options.quiet) as display:
            if fmt is None:
                make_writer = partial(serial_writer, paths[0], targets[0].temporary, n_atoms, n_frames)
                if dataset:
                    make_writer = partial(_dataset_writer, options, opened, dataset, n_atoms)
                _write_alone(comm, steps, reader, paths[0], make_writer, display)
            else:
                _write_together(comm, steps, reader, targets[0], fmt, display)
        run_collectively(comm, targets[0].sync)
        for target in reversed(targets):
            on_first_rank(comm, target.take_name)
        run_collectively(comm, reader.close)
    n_bytes = (content.n_bytes if dataset else os.stat(paths[0]).st_size) if comm.rank == 0 else 0
    seconds = time.perf_counter() - start
    return Converted(*paths, n_frames, n_atoms, n_bytes, seconds, _list_steps(options), tuple(steps.warnings))


def _list_steps(options: ConvertOptions) -> tuple[str, ...]:
    """Return texts of the transformations applied."""
    transform = options.transform_options
    steps = [
        (transform.whole, "whole"),
        (transform.nojump, "without jumps, by the shortest step in each frame's box"),
        (transform.cluster, f"molecules of {transform.cluster!r} next to one another"),
        (transform.center, f"centred on {transform.center!r}"),
        (transform.wrap, f"wrapped by {transform.wrap}"),
        (transform.fit, f"fitted by {transform.fit!r} to {transform.reference or 'the first frame'}"),
    ]
    return tuple(text for applied, text in steps if applied)


def _write_topology(steps: Steps, target: ConversionTarget) -> None:
    """Write the topology with the positions of the first frame."""
    try:
        with interrupts_wait():
            steps.write_topology(target.temporary)
    except (ValueError, TypeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise cannot_write(target.path, error) from error
        raise UsageError(f"{target.path} cannot be written: {error}; name another file by topology_out") from error
    target.sync()


def _split_rounds(n_frames: int, n_atoms: int, size: int) -> Iterator[list[range]]:
    """Yield the steps of each rank, round by round."""
    batch = max(1, min(AT_ONCE, BYTES_AT_ONCE // (12 * max(n_atoms, 1)), -(-n_frames // size)))
    for start in range(0, n_frames, batch * size):
        firsts = [min(n_frames, start + batch * rank) for rank in range(size + 1)]
        yield [range(firsts[rank], firsts[rank + 1]) for rank in range(size)]


def _write_together(
    comm: Communicator, steps: Steps, reader: Reader, target: ConversionTarget, fmt: Format, display: Progress
) -> None:
    """Write all frames, each rank its parts."""
    head = fmt.head(reader.first_time, reader.timestep)
    on_first_rank(comm, partial(target.write, 0, [head]))
    moved, offset, n_done = np.zeros((reader.followed, 3), np.int64), len(head), 0
    for parts in _split_rounds(len(reader.frames), reader.n_atoms, comm.size):
        own_part = parts[comm.rank]
        reader.bring(parts)
        frames, shifts = run_collectively(comm, partial(reader.read, own_part))
        by_rank = comm.allgather(total(shifts, len(moved))) if len(moved) else []
        for shift in by_rank[: comm.rank]:
            add(shift, moved)
        finished = _finish_frames(steps, frames, shifts, moved)
        written: list[Any] = run_collectively(comm, partial(list, map(fmt.frame, finished)))
        for shift in by_rank[comm.rank + 1 :]:
            add(shift, moved)
        sizes = comm.allgather(sum(map(len, written)))
        run_collectively(comm, partial(target.write, offset + sum(sizes[: comm.rank]), written))
        offset += sum(sizes)
        n_done += len(own_part)
        display(n_done)


def _finish_frames(
    steps: Steps, frames: Iterable[PartialFrame], shifts: Sequence[Shift], moved: npt.NDArray[np.int64]
) -> Iterator[PartialFrame]:
    """Yield frames ready to be written; add their shifts to `moved`."""
    for place, part in enumerate(frames):
        if len(moved):
            add(shifts[place], moved)
            part.positions = (part.positions - moved * UNIT).astype(np.float32)
        steps.finish(part)
        yield part


def _dataset_writer(options: ConvertOptions, opened: OpenFrames, dataset: str, n_atoms: int) -> Any:
    """Return an MDAnalysis writer that resumes an equal conversion that was killed."""
    from himach.mdanalysis.dataset_writer import HimachWriter

    label = f"himach convert, {_conversion_identity(options, opened)[:16]}"
    return HimachWriter(f"himach://{dataset}", n_atoms, cache=options.cache, identity=label)


def _write_alone(
    comm: Communicator, steps: Steps, reader: Reader, path: Path, make_writer: Callable[[], Any], display: Progress
) -> None:
    """Write all frames on the first rank (collective)."""
    moved = np.zeros((reader.followed, 3), np.int64)
    stack = ExitStack()

    def write(span: range) -> None:
        frames, shifts = reader.read(span)
        for step, part in zip(span, _finish_frames(steps, frames, shifts, moved), strict=True):
            atoms = steps.show(part, step)
            try:
                writer.write(atoms)
            except ValueError as error:
                raise UsageError(f"{path}: frame {part.number}: {error}; choose another format") from error
        display(span.stop)

    attempt = writing(path)  # each call of it is a context of its own
    try:
        writer = on_first_rank(comm, attempt(lambda: stack.enter_context(make_writer())))
        for (span,) in _split_rounds(len(reader.frames), reader.n_atoms, 1):
            reader.bring([span] + [range(0)] * (comm.size - 1))
            on_first_rank(comm, attempt(partial(write, span)))
        on_first_rank(comm, attempt(stack.close))
    except BaseException:
        with suppress(OSError):  # on a full disk closing fails too; the error is already reported
            stack.close()
        raise


def _write_record(path: Path, options: ConvertOptions, opened: OpenFrames, result: Converted, ranks: int) -> None:
    """Write the input, the transformations, the number of ranks and the result as JSON."""
    trajectory = result.name if parse_dataset_name(result.path) else str(result.path.absolute())
    written = {**asdict(result), "path": trajectory, "topology": str(result.topology.absolute())}
    del written["members"]
    record = {
        **_requested(options, opened), "done": written.pop("done"), "warnings": written.pop("warnings"), "ranks": ranks,
        "written": written, "date": datetime.now().astimezone().isoformat(timespec="seconds"),
    }  # fmt: skip
    with writing(path), whole_file(path, sync=True) as file:
        file.write(json.dumps(record, indent=2, ensure_ascii=False).encode() + b"\n")


def _conversion_identity(options: ConvertOptions, opened: OpenFrames) -> str:
    """Return a digest (hex) of everything that determines the bytes of the trajectory."""
    requested = _requested(options, opened)
    requested["versions"] = {name: requested["versions"].get(name) for name in ("himach", "himach's format", *MOVING)}
    return hashlib.sha256(json.dumps(requested).encode()).hexdigest()


def _requested(options: ConvertOptions, opened: OpenFrames) -> dict[str, Any]:
    """Return the input, the transformations, and the versions of packages."""
    frames, transform = opened.frames, options.transform_options
    files = {"topology": options.topology, "reference": transform.reference}
    present = [public_name(file) for file in files.values() if file is not None]
    return {
        "dataset": dataset_record(opened),
        "digests": {file: content_digest(local_path(file)) for file in present},
        "asked": {
            **{name: None if file is None else absolute(file) for name, file in files.items()},
            "select": options.selection,
            **{name: getattr(transform, name) for name in ("whole", "nojump", "cluster", "center", "wrap", "fit")},
        },
        "selected": [frames.start, frames.stop, frames.step] if isinstance(frames, range) else frames_text(frames),
        "versions": versions(),
    }
