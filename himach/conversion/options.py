"""Options of a conversion: `ConvertOptions`."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from himach.conversion.target_files import check_target, parse_dataset_name
from himach.errors import UsageError
from himach.io.datasets.member import Member
from himach.io.datasets.request import FramesRequest, option
from himach.io.trajectories.urls.url_names import refuse_urls
from himach.output.file_names import lasting_name

MEMBER = "{member}"  # placeholder for a member's name in file names


@dataclass(frozen=True)
class ConvertOptions(FramesRequest):
    """Options of a conversion: input frames and atoms, transformations, and output files."""

    out: Path | None = option(
        "The file to write: .xtc, .trr, .dcd, .nc by all ranks, others by one; or a dataset, himach://NAME.",
        type=Path,
        metavar="FILE",
        short="-o",
    )
    selection: str = option("Atoms to write.  [default: all]", default="all", metavar="SELECTION", short="--select")
    topology_out: Path | None = option(
        "Where the topology of the atoms goes.  [default: FILE with .pdb]", type=Path, metavar="FILE"
    )
    record: Path | None = option("Write to this file, as JSON, what was read and done.", type=Path, metavar="FILE")
    force: bool = option("Replace files that are there.", default=False, is_flag=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out is None:
            raise UsageError("no file to write; name it with --out (out=...)")
        refuse_urls([self.out], "a conversion writes local files; write one, and upload it")
        if self.topology_out is None:
            dataset = parse_dataset_name(self.out)
            self._set_fields(topology_out=Path(f"{dataset}.pdb") if dataset else self.out.with_suffix(".pdb"))
        if self.topology_out == self.out and self.out.suffix.lower() != ".pdb":
            raise UsageError(f"{self.out} cannot be both the trajectory and its topology; name another topology_out")
        if self.record in (self.out, self.topology_out):
            raise UsageError(f"{self.record} cannot be both the record and what it tells of; name another record")
        for name, path in self._paths().items():
            if self.ensemble is not None and MEMBER not in str(path):
                raise UsageError(f"{name} {path} is one file; each member of an ensemble has its own: put {MEMBER} in")

    def _paths(self) -> dict[str, Path]:
        """Return the output files by option name."""
        paths = {name: getattr(self, name) for name in ("out", "topology_out", "record")}
        return {name: path for name, path in paths.items() if path is not None}

    @property
    def files(self) -> list[Path]:
        """Output files, of all members; raises UsageError if there is no such ensemble."""
        all_options = [self] if self.ensemble is None else [options for _, options in self.for_members()]
        return [path for options in all_options for path in options._paths().values()]

    def check_files(self) -> None:
        """Raise UsageError if an output file is an input, or exists without `force`."""
        inputs = [*self.trajectories, *filter(None, [self.topology, self.transform_options.reference])]
        for path in self.files:
            check_target(path, inputs, self.force)

    def for_members(self) -> "Iterator[tuple[Member, ConvertOptions]]":
        """Yield the members of the ensemble with the options of each; raises UsageError."""
        from himach.io.datasets.member import read_members

        assert self.ensemble is not None
        for member in read_members(self.ensemble, self.topology):
            name = lasting_name(member.name)
            values: dict[str, Any] = {key: Path(str(path).replace(MEMBER, name)) for key, path in self._paths().items()}
            topology = None if member.topology is None else Path(member.topology)
            values |= {"ensemble": None, "trajectories": member.trajectories, "topology": topology, "quiet": True}
            yield member, replace(self, **values, **member.choice)
