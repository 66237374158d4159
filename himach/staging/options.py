"""Options of staging: `StageOptions`."""

from dataclasses import dataclass

from himach.errors import UsageError
from himach.io.datasets.request import DatasetRequest, check_choices, option
from himach.io.store.sizes import parse_size
from himach.io.trajectories.urls.url_names import refuse_urls


@dataclass(frozen=True)
class StageOptions(DatasetRequest):
    """Options of staging."""

    dataset: str | None = option("Name to stage under; default: the trajectory's absolute path.", metavar="NAME")
    placement: str = option(
        "Frames round-robin over the nodes, or neighbours together.  [default: spread]",
        default="spread", choices=("spread", "runs"),
    )  # fmt: skip
    quota: int | str | None = option(
        "What a store may hold; default: $HIMACH_QUOTA or half of what is free.", metavar="SIZE"
    )
    copies: int | None = option(
        "Nodes that hold each frame, so that a lost one costs nothing.  [default: 1]", type=int, metavar="N"
    )
    repair: bool = option(
        "Restore the number of copies of what the nodes hold of dataset TRAJ.", default=False, is_flag=True
    )
    atoms: str | None = option(
        "Stage these atoms of all frames alone, as a run of them keeps them.  [default: whole frames]",
        metavar="SELECTION",
    )
    server: str = ""  # from `himach.io.server.survey.format_choice`: stage what this server and its peers hold
    quiet: bool = False  # show no progress

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)
        if isinstance(self.quota, str):
            self._set_fields(quota=parse_size(self.quota))
        if self.cache == "off":
            raise UsageError("staging fills the cache: 'off' makes no sense here")
        if self.copies is not None and self.copies < 1:
            raise UsageError(f"--copies {self.copies}: one node at least holds each frame")
        if self.repair and self.server:
            raise UsageError("--repair copies what the nodes hold: leave --server out")
        if self.server and self.dataset is not None:
            raise UsageError("what a server has is staged under its own name: leave --dataset out")
        refuse_urls(self.trajectories, "runs keep its frames by themselves; download it, and stage the local file")
        for name in ("copies", "repair", "server") if self.atoms is not None else ():
            if getattr(self, name):
                raise UsageError(
                    f"--{name} is for whole frames: leave it out, and stage --atoms of the trajectory's files; or "
                    "leave out --atoms"
                )
        if self.dataset is not None:
            from himach.io.store.cached_frames import base_name

            if base_name(self.dataset) != self.dataset:
                raise UsageError(f"--dataset is {self.dataset!r}; names that end so are himach's own: choose another")
            if not self.dataset or "\0" in self.dataset:
                raise UsageError(f"dataset {self.dataset!r}: a name is text of one character at least")

    @property
    def name(self) -> str:
        """Name of the dataset in stores."""
        from himach.io.datasets.lookup import dataset_name

        return self.dataset if self.dataset is not None else dataset_name(self.trajectories)
