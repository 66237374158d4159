"""What a scientist writes: `Analysis`; `Pairs`, many pairs at once, and `Row`, one row of a table by frame."""

import inspect
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from himach.errors import AnalysisError, UsageError, nearest
from himach.frame import Frame
from himach.parameters import Parameter, parameter_docs, selected, supported, type_name

if TYPE_CHECKING:
    from MDAnalysis import AtomGroup, Universe


#: Key in an analysis's ``__dict__``; true while its map() runs, when attributes cannot be assigned.
MAPPING = "_mapping"
#: Key of the original values of parameters that are groups of atoms, while attributes are groups of a Universe.
GIVEN = "_given"
#: Cached type hints of analysis classes, which each member of an ensemble needs.
_HINTS: WeakKeyDictionary[type, dict[str, Any]] = WeakKeyDictionary()


class Pairs:
    """Many pairs of key and value of one frame, as columns.

    Parameters
    ----------
    keys
        Integers (n,), or (n, k) for keys that are tuples of k integers. Any sequence or array; kept as int64.
    values
        Array (n, ...) of any dtype but object, one row a key, kept in this machine's byte order; None says "present in
        this frame".

    Raises
    ------
    UsageError
        If keys are no integers or have another shape, if values are objects or of another length.

    Examples
    --------
    >>> himach.Pairs([3, 8], [0.5, 0.25])
    Pairs(keys (2,), float64 (2,))
    """

    __slots__ = ("keys", "values")

    def __init__(self, keys: npt.ArrayLike, values: npt.ArrayLike | None = None) -> None:
        column = np.asarray(keys)
        if column.dtype != np.int64 or column.ndim != 1:
            column = self._checked(column)
        self.keys: npt.NDArray[np.int64] = column
        self.values: npt.NDArray[Any] | None = None
        if values is not None:
            self.values = np.asarray(values)
            if self.values.ndim == 0 or len(self.values) != len(self.keys):
                raise UsageError(
                    f"Pairs: {len(self.keys)} keys need as many values, these have the shape {self.values.shape}"
                )
            if self.values.dtype.hasobject:
                raise UsageError("Pairs: values must be an array of numbers; yield Python objects one by one")
            if not self.values.dtype.isnative:
                self.values = self.values.astype(self.values.dtype.newbyteorder("="))

    @staticmethod
    def _checked(column: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return keys as int64 (n,) or (n, k)."""
        if column.size == 0 and column.dtype.kind == "f":
            column = column.astype(np.int64)  # an empty list has no integer dtype
        if column.dtype.kind not in "iu":
            raise UsageError(f"Pairs: keys must be integers, these are {column.dtype}; yield other keys one by one")
        if column.ndim not in (1, 2) or (column.ndim == 2 and column.shape[1] == 0):
            raise UsageError(f"Pairs: keys must have the shape (n,) or (n, k), these have {column.shape}")
        if column.dtype == np.uint64 and column.size and int(column.max()) > np.iinfo(np.int64).max:
            raise UsageError(f"Pairs: key {int(column.max())} does not fit into 64 signed bits; yield it one by one")
        return column.astype(np.int64, copy=False)

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        values = "presence" if self.values is None else f"{self.values.dtype} {self.values.shape}"
        return f"Pairs(keys {self.keys.shape}, {values})"


#: Columns of every table of rows: the frame's time first, its number last.
TIME, FRAME = "time_ps", "frame"


class Row:
    """One row of a table by frame, which map() yields once a frame, at most.

    An analysis that yields rows alone has no reduce(): its outcome, or what its finish() gets, is the table; beside
    pairs and results of these it is ``results.rows`` in finish(), and a part of the outcome without it. Its columns
    are ``time_ps``, then those of the rows, then ``frame``. A row that lacks a column has None there.

    Where rows are many and the outcome is written, columns of numbers are `numpy.memmap`: they lie on the disk.

    Parameters
    ----------
    **cells
        A number, a text, True, False or None by the name of its column.

    Raises
    ------
    UsageError
        If there is no cell, one is something else, or has the name of a column that is there anyway.

    Examples
    --------
    >>> himach.Row(rg=12.5, state="folded")
    Row(rg=12.5, state='folded')
    """

    __slots__ = ("names", "values")

    def __init__(self, **cells: Any) -> None:
        if not cells:
            raise UsageError("Row: name its columns, as in himach.Row(rg=12.5)")
        for name, value in cells.items():
            if type(value) is float and name not in (TIME, FRAME):
                continue
            if name in (TIME, FRAME):
                raise UsageError(f"Row: the table has {name!r} anyway; leave it out, or give it another name")
            cell = cells[name] = value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value
            plain = cell is None or isinstance(cell, bool | int | float | complex | str)
            if not plain and not (isinstance(cell, np.generic) and cell.dtype.kind in "biufcMm"):
                what = f"an array {cell.shape}" if isinstance(cell, np.ndarray) else f"an object {type(cell).__name__}"
                raise UsageError(f"Row: {name!r} is {what}; a cell is a number or a text, so give each its own column")
        self.names = tuple(cells)
        self.values = tuple(cells.values())

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in zip(self.names, self.values, strict=True))})"


class _Signature:
    """Parameters of an analysis as a signature, by which editors complete."""

    def __get__(self, analysis: "Analysis | None", cls: "type[Analysis]") -> inspect.Signature | None:
        kind, parameters = inspect.Parameter.KEYWORD_ONLY, cls.parameters()
        if cls.__init__ is not Analysis.__init__ or not parameters:
            return None
        each = [(item.name, item.default, item.type) for item in parameters.values()]
        return inspect.Signature(
            [inspect.Parameter(name, kind, default=value, annotation=hint) for name, value, hint in each]
        )


@typing.dataclass_transform(kw_only_default=True)
class Analysis:
    """An analysis of a trajectory: a map() over frames and a reduce() over keys.

    Subclass it. Annotated class attributes are the parameters; they are set by ``MyAnalysis(cutoff=3.2)`` or on the
    command line by ``-p cutoff=3.2``, and documented in the Parameters section of the class's docstring.

    Attributes
    ----------
    frames
        The selected frame numbers, a range; set before setup().
    dt
        Time between selected frames in ps, None where it is uneven or there is but one frame; set before setup().
    member
        Name of the member of an ensemble whose frames these are; None in other runs. Set before setup().
    caches
        Names of attributes that map() may change: buffers and caches on which no result depends.
    then
        An Analysis (class or instance) whose reduce() takes the pairs that this reduce() yields; None ends the chain.
        A parameter without a value that it has by the name of one of this analysis has the value that it has here.
    key_names
        Names of the columns that keys are in the table that is the outcome without finish(), as ``("ion", "site")`` for
        keys that are tuples of two; by default ``key``, or ``key_0``, ``key_1``, ... for tuples.
    methods
        What a paper says of the analysis, in a sentence or some. ``{cutoff}`` stands for the value of the parameter of
        that name, and a DOI in square brackets is a citation. Where words depend on values, it is a property.
    references
        What is cited at the end of `methods`, unless that cites DOIs itself; DOIs as a rule.
    caption
        What the figure shows, written like `methods`; what its bands and bars are is added. Without it, the first line
        of the docstring.

    Examples
    --------
    >>> class Height(himach.Analysis):
    ...     def setup(self, universe):
    ...         self.protein = universe.select_atoms("protein")
    ...     def map(self, frame):
    ...         yield "z", self.protein.center_of_geometry()[2]
    ...     def reduce(self, key, series):
    ...         return round(np.mean(series.values), 3)
    >>> print(himach.run(Height(), u, stop=5).outcome)
    key  result
    ---  ------
    z    19.116
    [1 row]
    """

    frames: ClassVar[range] = range(0)
    dt: ClassVar[float | None] = None
    member: ClassVar[str | None] = None
    caches: ClassVar[Sequence[str]] = ()
    then: "ClassVar[Analysis | type[Analysis] | None]" = None
    key_names: ClassVar[Sequence[str]] = ()
    methods: ClassVar[str] = ""
    references: ClassVar[Sequence[str]] = ()
    caption: ClassVar[str] = ""
    #: Name in messages, options and output files; the class's name unless a class sets its own.
    name: ClassVar[str] = ""

    __signature__ = _Signature()

    def __init__(self, **parameters: Any) -> None:
        parameters_by_name = self.parameters()
        for name in parameters:
            if name not in parameters_by_name:
                hint = nearest(name, parameters_by_name) if parameters_by_name else "; it has none"
                raise UsageError(f"{self.label()} has no parameter {name!r}{hint}")
        for name, parameter in parameters_by_name.items():
            value = parameters.get(name, parameter.default)
            if value is Parameter.REQUIRED:
                raise UsageError(f"{self.label()} needs a value for its parameter {name!r} ({parameter.type_name})")
            try:
                setattr(self, parameter.attribute, parameter.check(value))
            except UsageError as error:
                raise UsageError(f"{self.label()}: {error}") from None

    # -- methods of a subclass ----------------------------------------------------------------------------------------

    def setup(self, universe: "Universe") -> None:
        """Prepare: select atoms, keep constants. Called on every rank once, at the first selected frame.

        There the Universe stands again in reduce(), finish() and plot().
        """

    def atoms(self, universe: "Universe") -> "AtomGroup | Sequence[AtomGroup]":
        """Return the atoms that map() reads, a group or several. Called on every rank right after setup(). Optional.

        With it, frames in the cache are read for these atoms alone, and `frame.positions` is no array: it gives
        ``positions[indices]`` of these atoms and refuses others by name
        (see `himach.io.universe.requested.RequestedVectors`).
        """
        raise AnalysisError(f"{self.label()} has no atoms()")

    def map(self, frame: Frame) -> Iterable[Any]:
        """Yield (key, value) pairs and/or `Pairs` of one frame, and one `Row`; without a reduce(), a `Row` alone."""
        raise AnalysisError(f"{self.label()} has no map()")

    def combine(self, key: Any, series: Any) -> Any:
        """Return one value in place of many; must be exact in any grouping. Optional."""
        raise AnalysisError(f"{self.label()} has no combine()")

    def reduce(self, key: Any, series: Any) -> Any:
        """Return the result of one key (None: no result); with `then`, yield pairs for the next analysis instead.

        Fields of results that are dicts or named tuples become columns, if there is no finish(). An analysis without
        reduce() yields a `Row` a frame.
        """
        raise AnalysisError(f"{self.label()} has no reduce()")

    def reduce_many(self, keys: Any, series: Any) -> Iterable[Any]:
        """Return the results of many keys at once: for each what `reduce` returns, in the order of `keys`. Optional.

        Parameters
        ----------
        keys
            int64 (n,), or (n, k) for keys that are tuples of k integers; a list of n keys where they are neither.
        series
            The `ManySeries` of these keys.
        """
        raise AnalysisError(f"{self.label()} has no reduce_many()")

    def finish(self, results: Mapping[Any, Any]) -> Any:
        """Turn key -> result, in key order, into the outcome. On rank 0. Without it: a table of keys and results.

        Where map() yields a `Row` a frame it gets their `Table`, which is the outcome without it; columns of a table
        that is long lie on the disk. Beside results the table is ``results.rows``.
        """
        raise AnalysisError(f"{self.label()} has no finish()")

    def plot(self, outcome: Any, axes: Any) -> None:
        """Draw the outcome on Matplotlib axes. Optional."""
        raise AnalysisError(f"{self.label()} has no plot()")

    # -- methods for himach -------------------------------------------------------------------------------------------

    @classmethod
    def label(cls) -> str:
        """Return the analysis's name in messages, options and output files."""
        return cls.name or cls.__name__

    @classmethod
    def defines(cls, method: str) -> bool:
        """Tell whether the subclass wrote `method` itself."""
        return getattr(cls, method) is not getattr(Analysis, method)

    @classmethod
    def yields_rows(cls) -> bool:
        """Tell whether map() yields rows of a table by frame, as nothing takes pairs."""
        return not any(map(cls.defines, ("reduce", "reduce_many", "combine")))

    @classmethod
    def parameters(cls) -> dict[str, Parameter]:
        """Return the parameters by name, those of base classes first.

        Raises
        ------
        UsageError
            If an annotation is of a type that the command line cannot set.
        """
        parameters: dict[str, Parameter] = {}
        for base in reversed(cls.__mro__):
            if not issubclass(base, Analysis) or base is Analysis:
                continue
            try:
                if (hints := _HINTS.get(base)) is None:
                    hints = _HINTS[base] = typing.get_type_hints(base)
            except NameError as error:
                raise UsageError(f"{cls.label()}: an annotation cannot be resolved ({error})") from None
            docs = parameter_docs(base.__doc__ or "")
            for name in inspect.get_annotations(base):
                hint = hints[name]
                if name.startswith("_") or typing.get_origin(hint) is ClassVar or hint is ClassVar:
                    continue
                if hasattr(Analysis, name):
                    raise UsageError(f"{cls.label()}: {name!r} cannot be a parameter, himach uses that name itself")
                if not supported(hint):
                    raise UsageError(
                        f"{cls.label()}: parameter {name!r} has the type {type_name(hint)}; parameters are str, int, "
                        "float, bool, himach.AtomGroup, Literal, lists of these, any of these or None (ClassVar marks "
                        "other attributes)"
                    )
                default = getattr(cls, name, Parameter.REQUIRED)
                old = parameters.get(name)
                parameters[name] = Parameter(name, hint, default, docs.get(name, old.doc if old else ""), name)
        return parameters

    @classmethod
    def cache_names(cls) -> frozenset[str]:
        """Return the names of attributes that map() may change."""
        return frozenset([cls.caches] if isinstance(cls.caches, str) else cls.caches)

    def settings(self) -> dict[str, Any]:
        """Return this analysis's parameters and their values; groups of atoms as `himach.atoms.Atoms`."""
        groups = self.__dict__.get(GIVEN, {})
        settings = {}
        for name, parameter in self.parameters().items():
            value = getattr(self, parameter.attribute)
            settings[name] = parameter.check(groups.get(name, value)) if parameter.groups else value
        return settings

    def select_groups(self, universe: "Universe") -> None:
        """Let parameters that are groups of atoms be groups of this Universe."""
        self.drop_atom_groups()
        groups = {
            name: parameter.check(getattr(self, name))
            for name, parameter in self.parameters().items()
            if parameter.groups
        }
        if groups:
            atom_groups = {name: selected(value, universe, name) for name, value in groups.items()}
            self.__dict__.update({**atom_groups, GIVEN: groups})

    def drop_atom_groups(self) -> None:
        """Let them be as they were given."""
        self.__dict__.update(self.__dict__.pop(GIVEN, {}))

    def next_stage(self) -> "Analysis | None":
        """Return `then` as an instance, or None."""
        stage = self.then
        if stage is None or isinstance(stage, Analysis):
            return stage
        if isinstance(stage, type) and issubclass(stage, Analysis):
            return stage(**self.values_for(stage))
        raise UsageError(f"{self.label()}: then must be an Analysis, not {type(stage).__name__}")

    def values_for(self, stage: "type[Analysis]") -> dict[str, Any]:
        """Return the values of this analysis's parameters that a later stage has too, and has no value for."""
        needed = [name for name, parameter in stage.parameters().items() if parameter.default is Parameter.REQUIRED]
        return {name: value for name, value in self.settings().items() if name in needed}

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get(MAPPING) and name not in self.cache_names():
            raise AnalysisError(
                f"map() of {self.label()} assigns to self.{name}; map() keeps nothing, because each rank sees some "
                "frames only: yield the value instead, as in `yield key, value`, and reduce() gets it in time order"
            )
        self.__dict__.get(GIVEN, {}).pop(name, None)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if self.__dict__.get(MAPPING) and name not in self.cache_names():
            raise AnalysisError(f"map() of {self.label()} deletes self.{name}; map() keeps nothing")
        super().__delattr__(name)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.settings().items())
        return f"{type(self).__name__}({settings})"


def state_without_universe(analysis: Analysis) -> dict[str, bytes]:
    """Return the pickled attributes that setup() and finish() set, without those that belong to the Universe."""
    import cloudpickle

    state = {}
    for name, value in vars(analysis).items():
        if name in vars(analysis).get(GIVEN, ()) or type(value).__module__.startswith("MDAnalysis"):
            continue  # an AtomGroup would include the trajectory
        try:
            state[name] = cloudpickle.dumps(value)
        except Exception:
            continue
    return state
