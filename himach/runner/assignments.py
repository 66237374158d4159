"""Sets parameters of analyses, and of the stages that follow them, as a command line says.

`set_parameters()` makes the analyses; `written_stages()` follows `then` before anything is made.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from himach.analysis import Analysis
from himach.errors import UsageError, nearest
from himach.output.names import unique_labels
from himach.parameters import Parameter


def set_parameters(classes: Sequence[type[Analysis]], assignments: Sequence[str]) -> list[Analysis]:
    """Return instances of the analyses with their parameters set.

    Parameters
    ----------
    classes
        The analyses of a run.
    assignments
        ``NAME=VALUE`` where there is one analysis: of its first stage that has such a parameter. ``OWNER.NAME=VALUE``:
        of the analysis or the stage of that name. Analyses that are there again go by ``NAME-2``, ``NAME-3``.

    Raises
    ------
    UsageError
        If there is no such owner or parameter, a value does not fit, or one that is needed is missing.
    """
    labels = unique_labels([cls.label() for cls in classes])
    chains = [[_Stage(written, written.label()) for written in written_stages(cls)] for cls in classes]
    for chain, label in zip(chains, labels, strict=True):
        chain[0].label = label
    for assignment in assignments:
        _assign(chains, assignment)
    return [_build(chain) for chain in chains]


def written_stages(cls: type[Analysis]) -> list[Analysis | type[Analysis]]:
    """Return an analysis and what follows it by `then`, up to what a run refuses: none, or one that was there."""
    stages: list[Analysis | type[Analysis]] = [cls]
    while True:
        following: Any = stages[-1].then
        if not issubclass(_class_of(following), Analysis) or any(following is stage for stage in stages):
            return stages
        stages.append(following)


def _class_of(written: Any) -> type[Any]:
    return written if isinstance(written, type) else type(written)


@dataclass
class _Stage:
    """An analysis as it was written, and the texts of its parameters."""

    written: Analysis | type[Analysis]
    label: str
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, Parameter]:
        return self.written.parameters()

    def make(self) -> Analysis:
        values = {name: self._parse(name, text) for name, text in self.texts.items()}
        if isinstance(self.written, type):
            return self.written(**values)
        made = copy.copy(self.written)
        for name, value in values.items():
            setattr(made, name, value)
        return made

    def _parse(self, name: str, text: str) -> object:
        try:
            return self.parameters[name].parse(text)
        except UsageError as error:
            raise UsageError(f"{self.label}: {error}") from None


def _assign(chains: Sequence[Sequence[_Stage]], assignment: str) -> None:
    name, equals, text = assignment.partition("=")
    if not equals:
        raise UsageError(f"-p {assignment}: a parameter is set as NAME=VALUE")
    owner, dot, parameter = name.rpartition(".")
    if not dot and len(chains) > 1:
        raise UsageError(
            f"-p {assignment}: with several analyses say whose parameter it is, as {chains[0][0].label}.{name}=..."
        )
    owners = _owners(chains, owner, assignment) if dot else _holder(chains[0], parameter)
    for stage in owners:
        if parameter not in stage.parameters:
            hint = nearest(parameter, stage.parameters) if stage.parameters else "; it has none"
            raise UsageError(f"{stage.label} has no parameter {parameter!r}{hint}")
        stage.texts[parameter] = text


def _owners(chains: Sequence[Sequence[_Stage]], owner: str, assignment: str) -> list[_Stage]:
    """Return what `owner` names: one analysis by its label, else all analyses and stages of that name."""
    everything = [stage for chain in chains for stage in chain]
    found = [chain[0] for chain in chains if chain[0].label == owner]
    found = found or [stage for stage in everything if owner in (stage.label, _class_of(stage.written).__name__)]
    if not found:
        labels = [stage.label for stage in everything]
        raise UsageError(f"-p {assignment}: no analysis {owner!r} in this run{nearest(owner, labels)}")
    return found


def _holder(chain: Sequence[_Stage], parameter: str) -> list[_Stage]:
    """Return the first stage that has a parameter; where none has it, the first stage, which then says so."""
    return [next((stage for stage in chain if parameter in stage.parameters), chain[0])]


def _build(chain: Sequence[_Stage]) -> Analysis:
    *earlier, last = chain
    made = last.make()
    for stage in reversed(earlier):
        following, made = made, stage.make()
        made.__dict__["then"] = following
    return made
