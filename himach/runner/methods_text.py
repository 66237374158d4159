"""Texts for a paper about an analysis, for its record: `describe_methods()`, methods, references and caption."""

import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypedDict

from himach.analysis import Analysis
from himach.atoms import Atoms
from himach.errors import HimachError, UsageError, nearest
from himach.output.record import Record

#: A citation within a text: DOIs in square brackets.
CITED = re.compile(r"\[(10\.\d{4,9}/[^\s\]]+(?:[,;]\s+10\.\d{4,9}/[^\s\]]+)*)\]")
#: DOIs that compiled modules of MDAnalysis request to be cited by; they have no source to read.
COMPILED = {"MDAnalysis.lib.qcprot": ("10.1107/S0108767305015266", "10.1002/jcc.21439")}
#: A request for a citation in the source of a module, and of a decorated class or method.
CITE, DECORATED = (
    re.compile(rf"^{call}\(\s*Doi\(\s*[\"']([^\"']+)", re.MULTILINE) for call in (r"due\.cite", r"@due\.dcite")
)
#: A parameter's name in braces, or braces that stand for themselves.
FIELD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
#: Maximum number of a list's items in a sentence.
MOST_ITEMS = 12
#: Prefix of a DOI in references.
BEFORE_DOI = re.compile(r"^(?:https?://(?:dx\.)?doi\.org/|doi:\s*)", re.IGNORECASE)
#: Methods of an analysis of MDAnalysis that a run calls.
CALLED = frozenset({"__init__", "_prepare", "_single_frame", "_conclude", "_get_aggregator"})


class MethodsText(TypedDict):
    """The methods of an analysis, its references, and what its figure shows."""

    methods: str
    references: list[str]
    caption: str


def describe_methods(chain: Sequence[Analysis]) -> MethodsText:
    """Return the texts about an analysis that are known before it runs."""
    first = chain[0]
    texts = [_fill_parameters(stage, "methods") for stage in chain]
    text = " ".join(_sentence(part) for part in texts if part) or _summary(first)
    cited = [doi for stage, part in zip(chain, texts, strict=True) for doi in _dois_in(part) or named_references(stage)]
    foreign = getattr(first, "foreign", None)
    due = [] if foreign is None else due_references(foreign)
    caption = _fill_parameters(first, "caption", _quoted) or doc_summary(type(first)) or first.label()
    return MethodsText(methods=text, references=list(dict.fromkeys([*cited, *due])), caption=_sentence(caption))


def with_intervals(
    entries: Sequence[Record], labels: Sequence[str], estimates: Mapping[str, Mapping[str, Any]]
) -> list[Record]:
    """Return the record's entries of analyses with captions that also describe their intervals."""
    captioned = []
    for entry, label in zip(entries, labels, strict=True):
        records = [record for name, record in estimates.items() if len(labels) == 1 or name.startswith(f"{label}/")]
        captioned.append(_extend(entry, _intervals(records)))
    return captioned


def with_groups(entries: Sequence[Record], level: float | None) -> list[Record]:
    """Return an ensemble's entries of analyses with captions that describe how members and groups are drawn."""
    means = (
        f" Bands and bars are means over the members of a group and their intervals of {100 * (level or 0):g} %, by "
    )
    sentence = "Each member is a line or a point." + ("" if level is None else f"{means}Student's t over members.")
    return [_extend(entry, [sentence]) for entry in entries]


def due_references(foreign: type[Any]) -> list[str]:
    """Return the DOIs that a class of MDAnalysis and its bases request to be cited by.

    MDAnalysis declares them by ``due.cite()`` and ``due.dcite()``, which do nothing unless duecredit is installed and
    turned on. They are therefore read from the source of the class's module, of the class and of methods that a run
    calls. Those of compiled modules that the class's module imports are added.
    """
    dois: list[str] = []
    for cls in foreign.__mro__:
        if cls.__module__ in ("builtins", "MDAnalysis.analysis.base"):
            continue
        module = sys.modules.get(cls.__module__)
        imported = (
            [] if module is None else [used for used in vars(module).values() if isinstance(used, types.ModuleType)]
        )
        dois += [doi for used in imported for doi in COMPILED.get(used.__name__, ())]
        called = [method for name, method in vars(cls).items() if name in CALLED]
        for pattern, code in [(CITE, module), (DECORATED, cls), *((DECORATED, method) for method in called)]:
            with suppress(OSError, TypeError):  # a notebook's cell, or compiled
                dois += pattern.findall(textwrap.dedent(inspect.getsource(code)))
    return list(dict.fromkeys(dois))


def _extend(entry: Record, sentences: Iterable[str]) -> Record:
    return {**entry, "caption": " ".join([entry.get("caption", ""), *sentences])}


def _fill_parameters(analysis: Analysis, what: str, mark: Callable[[str], str] | None = None) -> str:
    """Return a text of an analysis with the values of its parameters filled in, on one line."""
    label = analysis.label()
    try:
        text = getattr(analysis, what)
    except HimachError:
        raise
    except Exception as error:  # raised by a property
        raise UsageError(f"{label}: {what} raised {type(error).__name__}: {error}") from error
    if not isinstance(text, str):
        raise UsageError(f"{label}: {what} must be a text, not {type(text).__name__}")
    settings, hints = analysis.settings(), {name: parameter.type for name, parameter in analysis.parameters().items()}

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if match[0] in ("{{", "}}"):
            return match[0][0]
        if name not in settings:
            hint = nearest(name, settings) if name else ""
            raise UsageError(
                f"{label}: {what} names {match[0]}, which is no parameter{hint}; braces that are none of a parameter "
                "are written twice"
            )
        return _value(settings[name], hints[name], mark or _code)

    return " ".join(FIELD.sub(fill, text).split())


def _value(value: Any, hint: Any, mark: Callable[[str], str]) -> str:
    """Return a parameter's value as text for a sentence; mark free text."""
    if isinstance(value, Atoms):
        value = value.value if isinstance(value.value, str) else repr(value)
    if isinstance(value, list):
        items = [_value(item, hint, mark) for item in value[:MOST_ITEMS]]
        return ", ".join(items + [f"{len(value) - MOST_ITEMS} more"] * (len(value) > MOST_ITEMS)) or "none"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        chosen = typing.Literal in (typing.get_origin(origin) for origin in (hint, *typing.get_args(hint)))
        return value if chosen else mark(value)
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _code(text: str) -> str:
    """Return text between more backticks than its longest run of them."""
    text = " ".join(text.split())
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence, space = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{space}{text}{space}{fence}" if text else '""'


def _quoted(text: str) -> str:
    return f"\N{LEFT DOUBLE QUOTATION MARK}{text}\N{RIGHT DOUBLE QUOTATION MARK}"


def _dois_in(text: str) -> list[str]:
    return [doi for group in CITED.findall(text) for doi in re.split(r"[,;]\s+", group)]


def named_references(stage: Analysis | type[Analysis]) -> list[str]:
    """Return a class's references, DOIs without ``https://doi.org/``; raise UsageError if they are no texts."""
    references: Any = stage.references
    references = [references] if isinstance(references, str) else references
    if not isinstance(references, list | tuple) or not all(isinstance(reference, str) for reference in references):
        raise UsageError(f"{stage.label()}: references must be texts, such as DOIs, not {references!r}")
    return [BEFORE_DOI.sub("", " ".join(reference.split())) for reference in references if reference.strip()]


def _summary(analysis: Analysis) -> str:
    """Return a methods text for an analysis that has none."""
    foreign = getattr(analysis, "foreign", None)
    name = analysis.label() if foreign is None else f"{foreign.__module__}.{foreign.__qualname__}"
    hints = {name: parameter.type for name, parameter in analysis.parameters().items()}
    settings = [f"{name} = {_value(value, hints[name], _code)}" for name, value in analysis.settings().items()]
    about = f" ({first_line.rstrip('.')})" if (first_line := doc_summary(type(analysis))) else ""
    return f"{_code(name)}{about} was computed{' with ' + '; '.join(settings) if settings else ''}."


def doc_summary(cls: type[Any]) -> str:
    """Return the first paragraph of a class's docstring, on one line; "" if it has none of its own."""
    doc = inspect.getdoc(getattr(cls, "foreign", cls)) or ""
    return "" if doc == inspect.getdoc(Analysis) else " ".join(doc.split("\n\n")[0].split())


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _intervals(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence about each kind of interval in an analysis's tables."""
    methods = dict.fromkeys(
        (row["method"], row["level"], row["blocks"]) for row in rows if row["method"] and row["method"] != "none"
    )
    computed = {key: None for key in methods if not key[0].startswith("none")}
    for method, level, blocks in computed:
        how = method.replace("over blocks", f"over {blocks} blocks") if blocks else method
        yield f"Bands and bars are intervals of {100 * level:g} % ({how})."
    if methods and not computed:
        reason = next(iter(methods))[0].removeprefix("none").lstrip(": ")
        yield f"There are no intervals{': ' + reason if reason else ''}."
