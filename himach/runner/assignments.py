"""Parameters of analyses and of the stages that follow them, as a command line sets them: `set_parameters()`."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from himach.analysis import Analysis
from himach.errors import UsageError, nearest
from himach.output.names import unique_labels
from himach.parameters import Parameter


def set_parameters(
    classes: Sequence[type[Analysis]], assignments: Sequence[str], recorded: Sequence[Mapping[str, Any]] = ()
) -> list[Analysis]:
    """Return instances of the analyses with their parameters set."""
    labels = unique_labels([cls.label() for cls in classes])
    chains = [[_Stage(written, written.label()) for written in written_stages(cls)] for cls in classes]
    for chain, label in zip(chains, labels, strict=True):
        chain[0].label = label
    for chain, entry in zip(chains, recorded, strict=False):
        _recall(chain, entry)
    for assignment in assignments:
        _assign(chains, assignment)
    return [_build(chain) for chain in chains]


def written_stages(cls: type[Analysis]) -> list[Analysis | type[Analysis]]:
    """Return an analysis and what follows it by `then`, up to what a run refuses: none, or one that was there."""
    stages: list[Analysis | type[Analysis]] = [cls]
    while True:
        following: Any = stages[-1].then
        if not issubclass(class_of(following), Analysis) or any(following is stage for stage in stages):
            return stages
        stages.append(following)


def class_of(written: Any) -> type[Any]:
    """Return the class of a stage as it was written: a class or an instance."""
    return written if isinstance(written, type) else type(written)


@dataclass
class _Stage:
    """An analysis as it was written, the values that its parameters had in an earlier run, and texts of new ones."""

    written: Analysis | type[Analysis]
    label: str
    values: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, Parameter]:
        return self.written.parameters()

    def make(self, before: Analysis | None = None) -> Analysis:
        """Return the stage with its values; what it takes from the stage before it, it has from there."""
        if isinstance(self.written, type) and before is not None:
            self.values = {**before.values_for(self.written), **self.values}
        values = {**self.values, **{name: self._parse(name, text) for name, text in self.texts.items()}}
        if isinstance(self.written, type):
            return self.written(**values)
        made = copy.copy(self.written)
        for name, value in values.items():
            setattr(made, self.parameters[name].attribute, value)
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
        stages = [stage for chain in chains for stage in chain]
        whose = dict.fromkeys(f"{stage.label}.{assignment}" for stage in stages if name in stage.parameters)
        if not whose:
            known = {parameter for stage in stages for parameter in stage.parameters}
            raise UsageError(f"-p {assignment}: no analysis of this run has a parameter {name!r}{nearest(name, known)}")
        raise UsageError(
            f"-p {assignment}: with several analyses say whose parameter it is: -p {' or -p '.join(map(repr, whose))}"
        )
    # Where no stage has it, the first one says so.
    holders = [stage for stage in chains[0] if parameter in stage.parameters] or chains[0]
    for stage in _owners(chains, owner, assignment) if dot else holders[:1]:
        if parameter not in stage.parameters:
            hint = nearest(parameter, stage.parameters) if stage.parameters else "; it has none"
            raise UsageError(f"{stage.label} has no parameter {parameter!r}{hint}")
        if parameter in stage.texts:
            raise UsageError(
                f"-p {assignment}: {parameter!r} of {stage.label} was set to {stage.texts[parameter]!r} before; "
                "give one value"
            )
        stage.texts[parameter] = text


def _recall(chain: Sequence[_Stage], entry: Mapping[str, Any]) -> None:
    """Take the values of an analysis and its later stages from a record."""
    entries = [entry]
    while "then" in entries[-1]:
        entries.append(entries[-1]["then"])
    then, now = [one["name"] for one in entries], [stage.written.label() for stage in chain]
    if then != now:
        raise UsageError(f"{chain[0].label} was {' then '.join(then)} in that run, and is {' then '.join(now)}")
    for stage, one in zip(chain, entries, strict=True):
        known = stage.parameters
        for name, value in one["parameters"].items():
            if name not in known:
                raise UsageError(f"{stage.label} had a parameter {name!r} in that run, and has none of that name")
            stage.values[name] = _from_json(known[name], value)


def _from_json(parameter: Parameter, value: Any) -> Any:
    """Return a parameter's value from a record, where null and "Infinity" stand for what JSON has no numbers for."""
    try:
        return parameter.check(value)
    except UsageError:
        if value is None:
            return parameter.check(float("nan"))
        return parameter.parse(str(value))


def _owners(chains: Sequence[Sequence[_Stage]], owner: str, assignment: str) -> list[_Stage]:
    """Return what `owner` names: one analysis by its label, else all analyses and stages of that name."""
    everything = [stage for chain in chains for stage in chain]
    found = [chain[0] for chain in chains if chain[0].label == owner]
    found = found or [stage for stage in everything if owner in (stage.label, class_of(stage.written).__name__)]
    if not found:
        labels = [stage.label for stage in everything]
        raise UsageError(f"-p {assignment}: no analysis {owner!r} in this run{nearest(owner, labels)}")
    return found


def _build(chain: Sequence[_Stage]) -> Analysis:
    first = made = chain[0].make()
    for stage in chain[1:]:
        following = stage.make(made)
        made.__dict__["then"] = following
        made = following
    return first
