"""What code makes a map, and what values it finds: `CodeFingerprint` of an analysis after setup().

Own modules count as a whole (see `dependencies`), with the globals that their functions name. Classes and functions
that no other process can import, such as those of a notebook's cells, count one by one, with globals that they name.
"""

from __future__ import annotations

import dis
import hashlib
import os
import secrets
import sys
import types
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from himach.analysis import GIVEN, MAPPING, Analysis
from himach.keeping.fingerprint.dependencies import (
    GLOBAL_REFLECTION,
    LATER,
    REFLECTION,
    DependencyTracer,
    Source,
    code_names,
    is_own,
    read_source,
)
from himach.parameters import recorded
from himach.value_digest import MADE, ValueDigests

if TYPE_CHECKING:
    from MDAnalysis import Universe

__all__ = ["UNSTABLE", "CodeFingerprint", "Found"]

#: Digest, and the text by which a difference is shown; "" for none.
Found = dict[str, tuple[str, str]]

#: Begins the digest of what is never the same; its text is the reason.
UNSTABLE = "unstable "
#: Longest text by which a value is shown.
LONGEST = 60
#: Attributes of an analysis that himach looks after.
_HIMACHS = frozenset({MAPPING, "frames", "dt", "caches", "then"})
#: Attributes that every Universe has; a topology has a digest of its own.
_OF_UNIVERSE = frozenset({"atoms", "residues", "segments", "filename", "name", "trajectory"})
#: Methods that run before map().
_BEFORE = frozenset({"setup", "atoms", "__init__"})


class CodeFingerprint:
    """What the pairs of an analysis depend on, beside its data.

    Parameters
    ----------
    analysis
        After setup().
    universe
        Its own.

    Attributes
    ----------
    code
        Own modules; classes and functions of notebooks.
    globals
        Of those modules and functions; attributes of classes.
    parameters
        Digests of the parameters' values.
    attributes
        Names in all that map() and combine() may run.
    state
        Attributes of the analysis and of its Universe that have such names, and transformations.
    """

    def __init__(self, analysis: Analysis, universe: Universe) -> None:
        trajectory = universe.trajectory
        known = [("self", analysis), ("universe", universe), ("trajectory", trajectory), ("ts", trajectory.ts)]
        cls = getattr(type(analysis), "foreign", None) or type(analysis)
        self._home = cls.__module__
        self._values = ValueDigests(known, _skipped, self._home)
        self._tracer = DependencyTracer()
        self._found: dict[str, dict[str, list[tuple[str, str]]]] = {
            kind: defaultdict(list) for kind in ("code", "globals", "parameters", "state")
        }
        self._seen: set[tuple[int, str]] = set()
        classes = [base for base in cls.__mro__ if base not in Analysis.__mro__]
        self._add_classes(classes)
        self._written = [*_installed_sources(classes)]
        for name, value in analysis.settings().items():
            self._add("parameters", name, recorded(value))
        for each in (*trajectory.transformations, *trajectory._auxs.values()):
            self._add("state", "universe.trajectory", each)
        parameters = {parameter.attribute for parameter in analysis.parameters().values()}
        ignored = {*_HIMACHS, GIVEN, *analysis.cache_names(), *parameters}
        before = -1
        while before != (before := len(self._seen) + len(self._tracer.sources)):
            self._go_on()
            self.attributes = self._attributes()
            self._add_state("self", vars(analysis), ignored)
            self._add_state(
                "universe", vars(universe), _OF_UNIVERSE | {name for name in vars(universe) if name[0] == "_"}
            )
        for name, source in {**self._tracer.unnamed, **self._tracer.sources}.items():
            label = "the script" if name == self._home else os.path.basename(source.file)
            self._found["code"][label].append((source.digest, ""))
        self.code, self.globals, self.parameters, self.state = map(_settled, self._found.values())

    def _add(self, kind: str, label: str, value: Any) -> None:
        """Take a value in; what no later run can find again gets a digest that is never the same."""
        try:
            found = self._values.digest(value, stable=True)
            text = repr(value) if _shows(value) else ""
        except Exception:  # whatever somebody's class raises
            found, text = UNSTABLE + secrets.token_hex(8), f"{type(value).__module__}.{type(value).__qualname__}"
        self._found[kind][label].append((found, text if len(text) <= LONGEST or found.startswith(UNSTABLE) else ""))

    def _add_classes(self, classes: Iterable[type]) -> None:
        for cls in classes:
            if self._values.imported(cls):
                continue
            for name, member in vars(cls).items():
                is_code = hasattr(member, "__get__")
                if name not in _skipped(cls) and (is_code or not _dunder(name)):
                    self._add("code" if is_code else "globals", f"{name}()" if is_code else name, member)

    def _add_state(self, owner: str, values: dict[str, Any], ignored: Collection[str]) -> None:
        """Take in what setup() left under names that map() and combine() may come to."""
        reflects = not REFLECTION.isdisjoint(self.attributes)
        for name, value in values.items():
            if (reflects or name in self.attributes) and name not in ignored and (id(values), name) not in self._seen:
                self._seen.add((id(values), name))
                self._add("state", f"{owner}.{name}", value)

    def _go_on(self) -> None:
        """Follow what was found to modules, and to globals."""
        self._tracer.follow(self._values.modules)
        functions = list(self._values.functions.values())
        for function in functions:
            for name in sorted(code_names(function.__code__) & function.__globals__.keys()):
                self._add_global(function.__globals__, name, "")
        used = set().union(*(code_names(code) for code in self._codes()))
        everything = not GLOBAL_REFLECTION.isdisjoint(used)
        for module_name, source in list(self._tracer.sources.items()):
            module = sys.modules.get(module_name)
            if module is None:
                continue
            where = "" if module_name == self._home else f" in {os.path.basename(source.file)}"
            for name in sorted(vars(module)):
                value = vars(module)[name]
                if name in used or everything:
                    self._add_global(vars(module), name, where)
                if isinstance(value, type) and value.__module__ == module_name:
                    self._add_attributes(value, where)

    def _add_global(self, names: dict[str, Any], name: str, where: str) -> None:
        if (id(names), name) not in self._seen and not _dunder(name):
            self._seen.add((id(names), name))
            value = names[name]
            is_code = isinstance(value, types.FunctionType | type) and not self._values.imported(value)
            call = "()" if isinstance(value, types.FunctionType) else ""
            self._add("code" if is_code else "globals", f"{name}{call}{where}", value)

    def _add_attributes(self, cls: type, where: str) -> None:
        """Take in the values that a class of a module has."""
        if (id(cls), "") in self._seen:
            return
        self._seen.add((id(cls), ""))
        for name, value in list(vars(cls).items()):
            if not _dunder(name) and name not in _skipped(cls) and not hasattr(value, "__get__"):
                self._add("globals", f"{cls.__qualname__}.{name}{where}", value)

    def _codes(self) -> Iterator[types.CodeType]:
        """Give the code of all functions that count."""
        for source in self._tracer.sources.values():
            yield from (code for code in source.codes if code.co_flags & 0x2)
        yield from (function.__code__ for function in self._values.functions.values())

    def _attributes(self) -> set[str]:
        """Return the names in functions that map() and combine() may come to, as far as names tell."""
        sources = [*self._tracer.sources.values(), *self._written]
        codes = [code for source in sources for code in source.codes]
        codes += [function.__code__ for function in self._values.functions.values()]
        waiting = [code for code in codes if code.co_flags & 0x2]
        modules = [code for code in codes if not code.co_flags & 0x2]
        named = {"map", "combine"}.union(*(_loaded(code) for code in modules))
        named.update(*(code_names(code) for code in waiting if code.co_name in _BEFORE))
        attributes: set[str] = set()
        while reached := [code for code in waiting if not REFLECTION.isdisjoint(attributes) or _runs(code, named)]:
            waiting = [code for code in waiting if code not in reached]
            attributes.update(*(code_names(code) for code in reached if code.co_name not in _BEFORE))
            named |= attributes
        return attributes


def _installed_sources(classes: Iterable[type]) -> Iterator[Source]:
    """Give the modules of classes that are installed, which do not count; their text tells what they use."""
    for name in sorted({cls.__module__ for cls in classes}):
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str) and not is_own(name, file):
            yield read_source(name, file)


def _runs(code: types.CodeType, named: set[str]) -> bool:
    return code.co_name in named or _dunder(code.co_name) or "<" in code.co_qualname


def _loaded(code: types.CodeType) -> set[str]:
    """Return the names that a module's or a class's own code uses, beside those that it defines."""
    return {str(each.argval) for each in dis.get_instructions(code) if each.opname in ("LOAD_NAME", "LOAD_ATTR")}


def _skipped(cls: type) -> frozenset[str]:
    """Return the attributes of a class that do not count."""
    if not issubclass(cls, Analysis):
        return MADE
    codes = [getattr(member, "__code__", None) for name, member in vars(cls).items() if name not in LATER]
    return MADE | _HIMACHS | (LATER - set().union(*(code_names(code) for code in codes if code))) | cls.cache_names()


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _shows(value: Any) -> bool:
    """Tell whether a value has a text that is short and the same in every process."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if type(value) in (list, tuple):
        return len(value) <= LONGEST and all(map(_shows, value))
    return type(value) in (int, float, complex, bool, str, bytes, type(None), range)


def _settled(found: dict[str, list[tuple[str, str]]]) -> Found:
    """Return one digest a label: several things may have one, such as modules of one name."""
    return {
        label: things[0] if len(things) == 1 else (_joined(digest for digest, _ in things), "")
        for label, things in sorted(found.items())
    }


def _joined(digests: Iterable[str]) -> str:
    listed = sorted(digests)
    if listed[-1].startswith(UNSTABLE):
        return listed[-1]
    return hashlib.sha256(" ".join(listed).encode()).hexdigest()[:40]
