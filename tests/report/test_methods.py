"""Methods of runs as text for a paper: what is said and cited, escapes, the same bytes; LaTeX and BibTeX compile."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import subprocess
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import ClassVar

import pytest
from markdown_it import MarkdownIt
from support import commands, needs

import himach
from himach.examples import BUILTINS, load, sample
from himach.report.checklist import QUESTIONS, checklist_of
from himach.report.files import write_report
from himach.report.latex import latex
from himach.report.methods import INTERVALS, methods_files, methods_of, write_files
from himach.report.references import LIBRARY, Bibliography, found
from himach.report.run_folder import read_folder
from himach.runner.outcome.methods_text import due_references, words_of
from himach.runner.rank import stages

ROOT = Path(__file__).parents[2]
#: Debian's packages that have what a text needs.
DEBIAN = "texlive-latex-base, texlive-latex-recommended, texlive-fonts-recommended of Debian"
#: Parameters under which built-ins say all that they can say.
SAYING_MORE = {
    "ion-permeation": {"top": "name O", "bottom": "name OG1", "radius": 2.5, "rule": "bulk-to-bulk"},
    "water-residence": {"intermittency": 2},
    "contacts": {"b": "resname SOL", "intermittency": 1, "scheme": "ca"},
    "hydrogen-bonds": {"donors": None, "bridges": 1, "intermittency": 2},
    "rmsd": {"reference": "a_b%&.pdb", "weights": "mass", "groups": ["core=resid 5:30"], "fit": "name CA"},
    "geometry": {"distances": ["index 1 5"], "angles": ["index 1 2 3"], "dihedrals": ["phi: protein"]},
    "sasa": {"radii": "protor", "part": "resid 1"},
    "rdf": {"by": "molecule", "exclude": "same-residue", "a": "name K"},
    "density": {"grid": 1.0, "center": "protein"},
    "msd": {"viscosity": 0.7, "temperature": 300.0, "molecules": True, "fit": "10-50"},
    "lipid-order": {"leaflets": "graph"},
    "membrane": {"leaflets": "graph"},
}
HOSTILE = (
    r"100% of $x_i^2$ & #1 {{}} ~\input{{/etc/passwd}} <b>*not*</b> [10.1234/a_b%c] `name O_` [no] {long} 水 Å ½ µ “q” "
    r"\x ^^M 分子动力学模拟的可靠性和可重复性清单分子动力学模拟的可靠性和可重复性清单"
)


DOIS = ("10.1002/(SICI)9999(19990901)36:4<419::AID-PROT5>3.0.CO;2-X", "10.1234/x#y{z\\w%20^~$&")


class Hostile(himach.Analysis):
    """Counts 100 % of $x$."""

    methods: ClassVar[str] = HOSTILE
    references: ClassVar[tuple[str, ...]] = (
        "10.9999/never_seen",
        "A {book} of 50 % & more",
        "https://a.b/c_d?e=%20",
        *DOIS,
    )

    what: str = "name `O` \\ {x}"
    long: str = f"/a/{'b' * 300}--c.py"

    def map(self, frame):
        yield 0, 1

    def reduce(self, key, series):
        return len(series)


@pytest.fixture(scope="module")
def rmsd(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("rmsd") / "out"
    himach.run(load("rmsd")(), *sample("villin"), out=out, cache="off", progress=False)
    return out


def with_record(folder: Path, into: Path, **fields) -> Path:
    """Return a folder with the record of another one, and some fields of it changed."""
    into.mkdir()
    record = json.loads((folder / "run.json").read_text())
    (into / "run.json").write_text(json.dumps({**record, "files": [], **fields}))
    return into


@pytest.fixture(scope="module")
def every(rmsd, tmp_path_factory) -> Path:
    """Return a folder whose record tells of all built-ins, twice, of all kinds of intervals, and of hostile words."""
    made = [load(name)(**SAYING_MORE.get(name, {})) for name in BUILTINS]
    made += [load(name)() for name in BUILTINS if name != "ion-permeation"]
    entries = [{"name": one.label(), "parameters": {}, **words_of(stages(one))} for one in [*made, Hostile()]]
    signs = " ".join(map(chr, [*range(0x21, 0x250), *range(0x370, 0x400), *range(0x2010, 0x2300)]))
    entries.append({"name": "signs", "methods": f"{signs} `{signs.replace('`', '')}`.", "references": []})
    told = {
        str(i): {"method": f"{name} 1", "level": 0.95, "means": {}} for i, name in enumerate([*INTERVALS, "none: few"])
    }
    members = [{"name": str(i), "group": "ab"[i % 2], "error": None} for i in range(6)]
    return with_record(
        rmsd, tmp_path_factory.mktemp("every") / "out", analyses=entries, uncertainty=told, ensemble=members
    )


def test_what_is_always_cited_comes_first_and_what_a_run_used_follows(rmsd):
    methods = methods_of([read_folder(rmsd)])
    keys = [reference.key for reference in methods.bibliography.references]
    assert keys[:4] == ["himach", "tu2008", "gowers2016", "michaudagrawal2011"]
    assert keys[4] == "theobald2005"
    record = json.loads((rmsd / "run.json").read_text())
    text = methods.markdown()
    assert (
        f"himach {record['himach']} [1, 2], which reads them by MDAnalysis {record['versions']['MDAnalysis']} [3, 4]"
        in text
    )
    assert f"Of `villin.xtc` ({record['dataset']['atoms']} atoms), all {record['frames']} frames were taken" in text
    assert "`protein and backbone` from the first selected frame was computed after superposition" in text
    # Too few independent values: no method of intervals is claimed.
    assert "there is none [6]" in text
    assert "Student" not in text


def test_what_was_done_to_frames_and_what_formats_are_cited_by_is_told(rmsd, tmp_path):
    dataset = {"path": ["/a/one.h5md", "/a/two.xtc"], "frames": 9, "atoms": 3}
    told = with_record(
        rmsd,
        tmp_path / "told",
        dataset=dataset,
        frames=5,
        step=2,
        whole=True,
        nojump=True,
        center="resid 5",
        fit="name `CA`",
        reference="/b/ref.pdb",
        equilibration=12.5,
    )
    methods = methods_of([read_folder(told)])
    text = methods.markdown()
    assert "Of `one.h5md` [5, 6] and `two.xtc` (3 atoms), 5 of 9 frames were taken (step 2)" in text
    assert (
        "molecules were made whole, then atoms were followed through the periodic boundary, by the shortest step in "
        "each frame's box [7], then the box was centred on `resid 5`, then frames were superposed on `ref.pdb`" in text
    )
    assert "by `` name `CA` `` and the quaternion method [8]" in text
    assert "Of means in time, values before 12.5 ps were left out." in text
    keys = [reference.key for reference in methods.bibliography.references]
    assert keys[4:8] == ["debuyl2014", "jakupovic2021", "vonbulow2020", "theobald2005"]


def test_an_ensemble_is_told_by_its_members_and_groups(tmp_path):
    trajectory, topology = sample("villin")
    members = [
        himach.Member(name, trajectory, topology, group=name[0], step=int(name[1])) for name in ("a1", "a2", "b3")
    ]
    himach.run(load("rmsd")(), ensemble=members, out=tmp_path / "out", cache="off", progress=False)
    text = methods_of([read_folder(tmp_path / "out")]).markdown()
    assert "The data are 3 simulations (`a`: 2, `b`: 1), with 459 frames together." in text
    assert "Means over simulations have intervals by Student's t, a simulation being one value." in text
    assert "Welch" in text
    (entry,) = json.loads((tmp_path / "out" / "run.json").read_text())["analyses"]
    assert entry["caption"].endswith("by Student's t over members.")


def test_each_thing_is_said_once_of_several_runs(rmsd, tmp_path):
    other = with_record(rmsd, tmp_path / "other", himach="9.9")
    text = methods_of([read_folder(folder) for folder in (rmsd, rmsd, other)]).markdown()
    assert text.count("root-mean-square deviation") == 1
    assert re.search(r"himach \S+ and 9\.9 \[1, 2\]", text)


def test_bytes_are_the_same_each_time(every):
    assert methods_files([read_folder(every)]) == methods_files([read_folder(every)])


def test_keys_and_numbers_are_those_of_one_list(every):
    files = methods_files([read_folder(every)])
    entries = re.findall(r"^@\w+\{(.+),$", files["references.bib"], re.MULTILINE)
    cited = [key for keys in re.findall(r"\\cite\{(.+?)\}", files["methods.tex"]) for key in keys.split(",")]
    assert list(dict.fromkeys(cited)) == entries, "in the order in which they are cited"
    assert all(re.fullmatch(r"[a-z0-9]+", key) for key in entries)
    assert len(set(entries)) == len(entries)
    numbers = [int(n) for n in re.findall(r"^(\d+)\. ", files["methods.md"], re.MULTILINE)]
    assert numbers == list(range(1, len(entries) + 1))


def test_hostile_words_stay_words(every):
    files = methods_files([read_folder(every)])
    assert files["methods.tex"].isascii()
    assert files["references.bib"].isascii()
    paragraph = next(line for line in files["methods.tex"].split("\n\n") if line.startswith("100"))
    assert r"100\% of \$x\_i\textasciicircum{}2\$ \& \#1 \{\}" in paragraph
    assert r"\textbackslash{}input\{/etc/passwd\}" in paragraph
    assert "[U+6C34]" in paragraph
    assert r"\cite{doi101234abc}" in paragraph
    assert r"\texttt{name O\_}" in paragraph
    shown = MarkdownIt("commonmark").render(files["methods.md"])
    assert "&lt;b&gt;*not*&lt;/b&gt;" in shown
    assert "<code>name O_</code>" in shown
    assert "<b>" not in shown
    assert r"100% of $x_i^2$ & #1 {} ~\input{/etc/passwd} <b>*not*</b> [" in methods_of([read_folder(every)]).plain()
    page = methods_of([read_folder(every)]).html()
    assert "<b>" not in page
    assert "&lt;b&gt;*not*&lt;/b&gt;" in page
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []


class Balanced(HTMLParser):
    """Checks that elements end in the order in which they begin."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_reference_that_is_not_known_has_what_it_is_named_by():
    assert found("10.9999/never_seen").bibtex() == (
        "@misc{doi109999neverseen,\n  doi = {10.9999/never_seen},\n"
        "  howpublished = {\\url{https://doi.org/10.9999/never_seen}},\n}\n"
    )
    assert found("A book of 50 %").fields == {"note": "A book of 50 %"}
    some = Bibliography("1")
    # Two that have the same letters, and one in other capitals, which is the same.
    assert some.keys(["10.9999/a_b", "10.9999/ab", "10.9999/A_B"]) == ["doi109999ab", "doi109999abb"]
    assert found("10.1107/s0108767305015266").key == "theobald2005", "capitals of a DOI mean nothing"


def test_the_library_knows_what_built_ins_and_mdanalysis_cite():
    from MDAnalysis.analysis import bat, dielectric, msd, rms
    from MDAnalysis.analysis.dssp import DSSP
    from MDAnalysis.analysis.hydrogenbonds.hbond_analysis import HydrogenBondAnalysis

    named = {doi for name in BUILTINS for doi in load(name).references}
    foreign = [bat.BAT, dielectric.DielectricConstant, msd.EinsteinMSD, rms.RMSD, DSSP, HydrogenBondAnalysis]
    named |= {doi for cls in foreign for doi in due_references(cls)}
    for uncertainty in (ROOT / "himach" / "uncertainty").glob("*.py"):
        named |= set(re.findall(r"\b10\.\d{4}/[\w./-]*\w", uncertainty.read_text(encoding="utf-8")))
    assert len(named) > 30
    assert [doi for doi in named if "title" not in found(doi).fields] == []


def test_entries_of_the_library_are_whole():
    entries = tomllib.loads(LIBRARY.read_text(encoding="utf-8"))
    needed = {
        "article": {"author", "title", "journal", "year"},
        "inproceedings": {"author", "title", "booktitle", "year"},
    }
    for key, entry in entries.items():
        assert needed.get(entry["type"], {"author", "title"}) <= entry.keys(), key
        assert key == "himach" or key.endswith(str(entry["year"]))
        assert all(", " in name or name.startswith("{") for name in entry["author"]), key
        assert "[U+" not in latex(" ".join([entry["title"], *entry["author"]])), key
    dois = [entry["doi"].lower() for entry in entries.values() if "doi" in entry]
    assert len(set(dois)) == len(dois)
    said = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"title: {entries['himach']['title']}\n" in said
    assert f"- name: {entries['himach']['author'][0].strip('{}')}\n" in said
    for key in ("tu2008", "tu2010"):
        assert " ".join(entries[key]["title"].split()) in " ".join(said.split())


@pytest.mark.slow
def test_latex_and_bibtex_of_all_built_ins_compile_without_a_warning(every, tmp_path):
    pdflatex = needs.program("pdflatex", "bibtex", of=DEBIAN, required="HIMACH_REQUIRE_LATEX")
    write_files(tmp_path, methods_files([read_folder(every)]))
    texed = [pdflatex, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "methods.tex"]
    for command in (texed, [str(Path(pdflatex).with_name("bibtex")), "methods"], texed, texed):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, errors="replace")
        assert done.returncode == 0, done.stdout
    log, cited = (tmp_path / "methods.log").read_text("latin-1"), (tmp_path / "methods.blg").read_text()
    assert not re.findall(r"^.*(?:Warning|Overfull|Underfull|^!).*$", log, re.MULTILINE)
    assert "warning$ -- 0" in cited
    assert not re.search(r"Warning--|error message", cited)
    assert "Output written on methods.pdf" in log


@pytest.mark.nightly
def test_a_record_with_anything_in_any_place_is_told_or_refused(rmsd, tmp_path):
    base = json.loads((rmsd / "run.json").read_text())
    system = base["system"]
    base["ensemble"] = [{"name": "a", "group": "x", "error": None, "system": system} for _ in range(3)]
    asked = [key for key in base if key not in ("planning", "seconds", "bytes")]
    places = [place for key in asked for place in places_in(base[key], (key,))]
    others = [None, 7, -1.5, math.nan, "x", [], {}, [1], {"a": 1}, True, ["a", None]]
    for place, other, one in itertools.product([*places, *((key,) for key in asked)], others, [False, True]):
        record = json.loads(json.dumps(base))
        inside = record
        for step in place[:-1]:
            inside = inside[step]
        inside[place[-1]] = other
        if one:
            record.pop("ensemble", None)
        (tmp_path / "run.json").write_text(json.dumps(record))
        with contextlib.suppress(himach.UsageError):
            assert methods_files([read_folder(tmp_path)])["methods.tex"].isascii(), (place, other)


def places_in(thing, place):
    """Give the places of all that is in a record."""
    for key, value in thing.items() if isinstance(thing, dict) else enumerate(thing) if isinstance(thing, list) else ():
        yield (*place, key)
        yield from places_in(value, (*place, key))


def test_a_file_that_himach_did_not_write_is_not_replaced(rmsd, tmp_path):
    files = methods_files([read_folder(rmsd)])
    write_files(tmp_path / "new" / "folder", files)
    write_files(tmp_path / "new" / "folder", files)  # its own it may
    (tmp_path / "references.bib").write_text("@book{mine}")
    with pytest.raises(himach.UsageError, match=r"references\.bib is there, and himach did not write it.*name another"):
        write_files(tmp_path, files)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "references.bib"]


def test_a_checklist_that_somebody_filled_is_not_replaced(rmsd, tmp_path):
    first = write_report([rmsd], tmp_path / "report.html")
    assert write_report([rmsd], tmp_path / "report.html") == first
    checklist = tmp_path / "checklist.md"
    checklist.write_text(filled := checklist.read_text().replace("**To be filled in:** salt concentration", "0.15 M"))
    (tmp_path / "report.html").write_text("the page before")
    with pytest.raises(himach.UsageError, match=r"checklist\.md is there, .* or it was changed since; name another"):
        write_report([rmsd], tmp_path / "report.html")
    assert checklist.read_text() == filled
    assert "0.15 M" in filled
    assert (tmp_path / "report.html").read_text() == "the page before"


def test_names_that_are_no_utf8_are_told_as_far_as_they_can_be(rmsd, tmp_path):
    record = (rmsd / "run.json").read_text()
    name = Path(json.loads(record)["dataset"]["path"]).name
    (tmp_path / "run.json").write_text(record.replace(name, r"caf\udce9.xtc"))
    written = write_report([tmp_path], tmp_path / "new.html")
    assert "caf\N{REPLACEMENT CHARACTER}.xtc" in written[1].read_text(encoding="utf-8")
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(["himach", "cite", tmp_path], capture_output=True, check=True, env=strict)
    assert "caf\N{REPLACEMENT CHARACTER}.xtc".encode() in done.stdout


def test_himach_cite_prints_and_writes(rmsd, tmp_path):
    done = commands.himach("cite", rmsd, check=True)
    assert done.stdout.startswith("Methods\n\nTrajectories were analysed with himach")
    assert "https://doi.org/10.1107/S0108767305015266" in done.stdout
    done = commands.himach("cite", rmsd, "--out", tmp_path, check=True)
    assert done.stdout == f"written to {tmp_path}: methods.md, methods.tex, references.bib, checklist.md\n"
    wrong = commands.himach("cite", tmp_path)
    assert (wrong.returncode, "there is no run.json in it" in wrong.stderr) == (2, True)


def test_the_checklist_is_filled_as_far_as_runs_tell(rmsd, tmp_path):
    answers = {one.number: one for one in checklist_of([read_folder(rmsd)])}
    assert list(answers) == list(QUESTIONS)
    assert "`rmsd`: equilibrated from 89.4 ps, 3.9 independent values, not converged." in answers["1a"].told
    assert answers["1b"].told == ("`out`: 250 of 250 frames were analysed; nothing was left out of means.",)
    assert answers["1c"].told[0].startswith("No: `out` is of one simulation")
    assert "MDAnalysis" in answers["4c"].told[0]
    assert answers["4e"].told == ("None in the analysis of `out`.",)
    blanks = {number for number, one in answers.items() if one.blank and not one.told}
    assert blanks == {"1d", "2a", "3a", "3b", "3c", "4b", "4d"}
    assert all(one.told or one.blank for one in answers.values())
    system = {"atoms": 9, "residues": {"protein": 4, "water": 3, "A|B": 1}, "box": [1.5, 2, 3, 90, 90, 90]}
    members = [{"name": str(i), "group": "ab"[i > 2], "error": None} for i in range(5)]
    digests = {"/home/me/shell.py": "12ab", "/usr/lib/other.py": "cd"}
    entry = {"name": "IonShell", "source": "/home/me/shell.py:IonShell"}
    more = with_record(
        rmsd,
        tmp_path / "more",
        system=system,
        ensemble=members,
        digests=digests,
        code_folders=["/home/me"],
        analyses=[entry, {"name": "Cell", "source": None, "unrepeatable": "it was defined in a notebook"}],
        equilibration="auto",
    )
    answers = {one.number: one for one in checklist_of([read_folder(more)])}
    mean = {"start_ps": 4, "halves": [2, 1, 3], "n_eff": 9.1, "method": "T"}
    timed = with_record(
        rmsd,
        tmp_path / "timed",
        system={"time_ps": [2.0, 9.5], "dt_ps": 0.5},
        uncertainty={"rmsd": {"level": 0.9, "means": {"rmsd": mean}}},
    )
    told = {one.number: one for one in checklist_of([read_folder(timed)])}
    assert answers["1c"].told[0].startswith("No: simulations by condition are `a`: 3, `b`: 2;")
    assert answers["4a"].told[0] == (
        "Box of the first frame: 1.5 x 2 x 3 Å, 90, 90, 90°. Atoms: 9. Water molecules: 3. Other residues: protein "
        "4, A|B 1."
    )
    assert answers["4e"].told == (
        "Analysis: `shell.py`, SHA-256 12ab.",
        "Analysis: `Cell`, of which there is no file (it was defined in a notebook).",
    )
    assert ", from 2 to 9.5 ps, every 0.5 ps." in methods_of([read_folder(timed)]).markdown()
    assert (
        "`rmsd`: equilibrated from 4 ps, its halves differ, 9.1 independent values, interval by T." in told["1a"].told
    )
    assert "what is before equilibration was left out" in answers["1b"].told[0]
    assert r"A\|B" in methods_files([read_folder(more)])["checklist.md"]


def test_every_sign_that_means_something_to_latex_is_written_in_words():
    for sign in '\\{}$&#%_^~<>|"`':
        assert latex(sign).startswith("\\"), sign
    assert latex("ÅΩςé½") == r"\AA{}\ensuremath{\Omega}\ensuremath{\sigma}{\'e}[U+00BD]\allowbreak{}"
    assert latex("a\n  b") == "a b"
