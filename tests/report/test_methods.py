"""Methods of runs as text for a paper: what is said and cited, escapes, the same bytes; LaTeX and BibTeX compile."""

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any, ClassVar

import pytest
from markdown_it import MarkdownIt
from support import commands, needs

import himach
from himach.examples import BUILTINS, load, sample
from himach.report.citations import LIBRARY, find_reference, latex, number_citations, parse_pieces
from himach.report.folder import RunFolder, read_folder
from himach.report.page import report_page
from himach.report.report_files import methods_files, write_methods
from himach.report.template import OWN
from himach.runner.methods_text import describe_methods, due_references
from himach.runner.options import stages

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


REFERENCES = ("10.9999/never_seen", "A {book} of 50 % & more", "https://a.b/c_d?e=%20")
DOIS = ("10.1002/(SICI)9999(19990901)36:4<419::AID-PROT5>3.0.CO;2-X", "10.1234/x#y{z\\w%20^~$&")


class Hostile(himach.Analysis):
    """Counts 100 % of $x$."""

    methods: ClassVar[str] = HOSTILE
    references: ClassVar[tuple[str, ...]] = (*REFERENCES, *DOIS)
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


MEMBER = {"name": "a", "trajectory": [], "topology": None, "group": None, "frames": 3}
MEMBER |= {"fingerprint": None, "error": None}
SYSTEM = {"atoms": 9, "residues": {}, "box": None, "time_ps": [2.0, 9.5], "dt_ps": 0.5}
UNCERTAINTY = {"method": "", "level": 0.95, "blocks": 8, "n_eff": 64.0, "means": {}, "half_widths": {}}
MEAN = {"mean": 1, "low": 0, "high": 2, "n_eff": 9.1, "blocks": 4, "method": "T", "start_ps": 4, "cut": False}


def with_record(folder: Path, into: Path, **fields: Any) -> RunFolder:
    """Return a folder with the record of another one, and some fields of it changed."""
    into.mkdir()
    record = json.loads((folder / "run.json").read_text())
    (into / "run.json").write_text(json.dumps({**record, "files": [], **fields}))
    return read_folder(into)


@pytest.fixture(scope="module")
def every(rmsd, tmp_path_factory) -> dict[str, str]:
    """Return what is written of a record of all built-ins, twice, of all kinds of intervals, and of hostile words."""
    made = [load(name)(**SAYING_MORE.get(name, {})) for name in BUILTINS]
    made += [load(name)() for name in BUILTINS if name != "ion-permeation"]
    entries = [
        {"name": analysis.label(), "parameters": {}, **describe_methods(stages(analysis))}
        for analysis in [*made, Hostile()]
    ]
    signs = " ".join(map(chr, [*range(0x21, 0x250), *range(0x370, 0x400), *range(0x2010, 0x2300)]))
    methods = f"{signs} `{signs.replace('`', '')}`."
    entries.append({"name": "signs", "parameters": {}, "methods": methods, "references": []})
    prose = (OWN / "prose.j2").read_text(encoding="utf-8")
    kinds = re.findall('^  "(.+)": "', prose.partition("set intervals")[2].partition("%}")[0], re.MULTILINE)
    assert len(kinds) == 7
    uncertainty = {str(i): {**UNCERTAINTY, "method": f"{name} 1"} for i, name in enumerate([*kinds, "none: few"])}
    members = [{**MEMBER, "name": str(i), "group": "ab"[i % 2]} for i in range(6)]
    place = tmp_path_factory.mktemp("every") / "out"
    folder = with_record(rmsd, place, analyses=entries, uncertainty=uncertainty, ensemble=members)
    files = methods_files([folder])
    assert methods_files([folder]) == files, "the same bytes each time"
    return {**files, "report.html": report_page([folder])}


def markdown(*folders: RunFolder) -> str:
    return methods_files(folders)["methods.md"]


def keys(*folders: RunFolder) -> list[str]:
    return re.findall(r"^@\w+\{(.+),$", methods_files(folders)["references.bib"], re.MULTILINE)


def test_what_is_always_cited_comes_first_and_what_a_run_used_follows(rmsd, tmp_path):
    run = read_folder(rmsd)
    assert keys(run)[:5] == ["himach", "tu2008", "gowers2016", "michaudagrawal2011", "theobald2005"]
    record, text = run.record, markdown(run)
    version, reader = record["himach"], record["versions"]["MDAnalysis"]
    assert f"himach {version} [1, 2], which reads them by MDAnalysis {reader} [3, 4]" in text
    assert f"Of `villin.xtc` ({record['dataset']['atoms']} atoms), all {record['frames']} frames were taken" in text
    assert "`protein and backbone` from the first selected frame was computed after superposition" in text
    # Too few independent values: no method of intervals is claimed.
    assert "there is none [6]" in text
    assert "Student" not in text
    text = markdown(run, run, with_record(rmsd, tmp_path / "other", himach="9.9"))
    assert text.count("root-mean-square deviation") == 1, "each thing is said once of several runs"
    assert re.search(r"himach \S+ and 9\.9 \[1, 2\]", text)


def test_what_was_done_to_frames_and_what_formats_are_cited_by_is_told(rmsd, tmp_path):
    dataset = {"path": ["/a/one.h5md", "/a/two.xtc"], "frames": 9, "atoms": 3, "fingerprint": "f"}
    treatment = {"whole": True, "nojump": True, "center": "resid 5", "fit": "name `CA`", "reference": "/b/ref.pdb"}
    options = {"frames": 5, "step": 2, "equilibration": 12.5, "system": SYSTEM}
    run = with_record(rmsd, tmp_path / "told", dataset=dataset, **treatment, **options)
    text = markdown(run)
    assert (
        "Of `one.h5md` [5, 6] and `two.xtc` (3 atoms), 5 of 9 frames were taken (step 2), from 2 to 9.5 ps, every "
        "0.5 ps. Before the analysis, molecules were made whole, then atoms were followed through the periodic "
        "boundary, by the shortest step in each frame's box [7], then the box was centred on `resid 5`, then frames "
        "were superposed on `ref.pdb` by `` name `CA` `` and the quaternion method [8]." in text
    )
    assert "Of means in time, values before 12.5 ps were left out." in text
    assert keys(run)[4:8] == ["debuyl2014", "jakupovic2021", "vonbulow2020", "theobald2005"]


def test_an_ensemble_is_told_by_its_members_and_groups(tmp_path):
    trajectory, topology = sample("villin")
    members = [himach.Member(name, trajectory, topology, group=name[0], step=int(name[1])) for name in ("a1", "b3")]
    himach.run(load("rmsd")(), ensemble=members, out=tmp_path / "out", cache="off", progress=False)
    text = markdown(run := read_folder(tmp_path / "out"))
    assert "The data are 2 simulations (`a`: 1, `b`: 1), with 334 frames together." in text
    assert "Means over simulations have intervals by Student's t, a simulation being one value." in text
    assert "Welch" in text
    assert run.record["analyses"][0]["caption"].endswith("by Student's t over members.")


def test_keys_and_numbers_are_those_of_one_list(every):
    entries = re.findall(r"^@\w+\{(.+),$", every["references.bib"], re.MULTILINE)
    cites = [key for keys in re.findall(r"\\cite\{(.+?)\}", every["methods.tex"]) for key in keys.split(",")]
    assert list(dict.fromkeys(cites)) == entries, "in the order in which they are cited"
    assert all(re.fullmatch(r"[a-z0-9]+", key) for key in entries)
    assert len(set(entries)) == len(entries)
    numbers = [int(n) for n in re.findall(r"^(\d+)\. ", every["methods.md"], re.MULTILINE)]
    assert numbers == list(range(1, len(entries) + 1))
    known = tomllib.loads(LIBRARY.read_text(encoding="utf-8")).keys()
    assert set(re.findall(r"@(\w+)", (OWN / "prose.j2").read_text(encoding="utf-8"))) - {"keys"} <= known


def test_hostile_words_stay_words(every):
    tex = every["methods.tex"]
    assert tex.isascii()
    assert every["references.bib"].isascii()
    paragraph = next(line for line in tex.split("\n\n") if line.startswith("100"))
    for written in (
        r"100\% of \$x\_i\textasciicircum{}2\$ \& \#1 \{\}", r"\textbackslash{}input\{/etc/passwd\}", "[U+6C34]",
        r"\cite{doi101234abc}", r"\texttt{name O\_}",
    ):  # fmt: skip
        assert written in paragraph
    for shown in (MarkdownIt("commonmark").render(every["methods.md"]), every["report.html"]):
        assert "&lt;b&gt;*not*&lt;/b&gt;" in shown
        assert "<code>name O_</code>" in shown
        assert "<b>*not" not in shown


def test_a_reference_that_is_not_known_has_what_it_is_named_by():
    dois = ("10.9999/never_seen", "10.9999/a_b", "10.9999/ab", "10.9999/A_B")
    (_, references) = number_citations([parse_pieces(f"[{doi}]") for doi in dois], "1")
    # Two that have the same letters, and one in other capitals, which is the same.
    assert [reference.key for reference in references] == ["doi109999neverseen", "doi109999ab", "doi109999abb"]
    url = r"\url{https://doi.org/10.9999/never_seen}"
    assert references[0].entry == [("doi", "10.9999/never_seen"), ("howpublished", url)]
    assert find_reference("A book of 50 %").fields == {"note": "A book of 50 %"}
    assert find_reference("10.1107/s0108767305015266").key == "theobald2005", "capitals of a DOI mean nothing"


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
    assert [doi for doi in named if "title" not in find_reference(doi).fields] == []


def test_entries_of_the_library_are_whole():
    entries = tomllib.loads(LIBRARY.read_text(encoding="utf-8"))
    needed = {"article": {"journal", "year"}, "inproceedings": {"booktitle", "year"}}
    for key, entry in entries.items():
        assert {"author", "title"} | needed.get(entry["type"], set()) <= entry.keys(), key
        assert key == "himach" or key.endswith(str(entry["year"]))
        assert all(", " in name or name.startswith("{") for name in entry["author"]), key
        assert "[U+" not in latex(" ".join([entry["title"], *entry["author"]])), key
    dois = [entry["doi"].lower() for entry in entries.values() if "doi" in entry]
    assert len(set(dois)) == len(dois)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"title: {entries['himach']['title']}\n" in citation
    assert f"- name: {entries['himach']['author'][0].strip('{}')}\n" in citation
    for key in ("tu2008", "tu2010"):
        assert " ".join(entries[key]["title"].split()) in " ".join(citation.split())


@pytest.mark.slow
def test_latex_and_bibtex_of_all_built_ins_compile_without_a_warning(every, tmp_path):
    pdflatex = needs.program("pdflatex", "bibtex", of=DEBIAN, required="HIMACH_REQUIRE_LATEX")
    write_methods(tmp_path, {name: text for name, text in every.items() if not name.endswith(".html")})
    texed = [pdflatex, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "methods.tex"]
    for command in (texed, [str(Path(pdflatex).with_name("bibtex")), "methods"], texed, texed):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, errors="replace")
        assert done.returncode == 0, done.stdout
    log, of_bibtex = (tmp_path / "methods.log").read_text("latin-1"), (tmp_path / "methods.blg").read_text()
    assert not re.findall(r"^.*(?:Warning|Overfull|Underfull|^!).*$", log, re.MULTILINE)
    assert "warning$ -- 0" in of_bibtex
    assert not re.search(r"Warning--|error message", of_bibtex)
    assert "Output written on methods.pdf" in log


def test_names_that_are_no_utf8_are_told_as_far_as_they_can_be(rmsd, tmp_path):
    record = (rmsd / "run.json").read_text()
    name = Path(json.loads(record)["dataset"]["path"]).name
    (tmp_path / "run.json").write_text(record.replace(name, r"caf\udce9.xtc"))
    assert "caf\N{REPLACEMENT CHARACTER}.xtc" in markdown(read_folder(tmp_path))
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(["himach", "cite", tmp_path], capture_output=True, check=True, env=strict)
    assert "caf\N{REPLACEMENT CHARACTER}.xtc".encode() in done.stdout


def test_himach_cite_prints_and_writes(rmsd, tmp_path):
    done = commands.himach("cite", rmsd, code=0)
    assert done.stdout.startswith("Methods\n\nTrajectories were analysed with himach")
    assert "https://doi.org/10.1107/S0108767305015266" in done.stdout
    done = commands.himach("cite", rmsd, "--out", tmp_path, code=0)
    assert done.stdout == f"written to {tmp_path}: methods.md, methods.tex, references.bib, checklist.md\n"
    wrong = commands.himach("cite", tmp_path)
    assert (wrong.returncode, "there is no record" in wrong.stderr) == (2, True)


def checklist(*folders: RunFolder) -> dict[str, list[str]]:
    """Return the answers of the checklist by number."""
    rows = re.findall(r"^\| (\d\w) \| .+? \| (.*) \|$", methods_files(folders)["checklist.md"], re.MULTILINE)
    return {number: answer.split("<br>") for number, answer in rows}


def test_the_checklist_is_filled_as_far_as_runs_tell(rmsd, tmp_path):
    answers = checklist(read_folder(rmsd))
    assert list(answers) == ["1a", "1b", "1c", "1d", "2a", "3a", "3b", "3c", "4a", "4b", "4c", "4d", "4e"]
    assert "`rmsd`: equilibrated from 89.4 ps, 3.9 independent values, not converged." in answers["1a"]
    assert answers["1b"] == ["`out`: 250 of 250 frames were analysed; nothing was left out of means."]
    assert answers["1c"][0].startswith("No: `out` is of one simulation")
    assert "MDAnalysis" in answers["4c"][0]
    assert answers["4e"] == ["None in the analysis of `out`."]
    blanks = {number for number, texts in answers.items() if texts[0].startswith("**To be filled in:** ")}
    assert blanks == {"1d", "2a", "3a", "3b", "3c", "4b", "4d"}
    assert {number for number, texts in answers.items() if texts[-1].startswith("**To be")} == blanks | {"4a", "4c"}
    system = {**SYSTEM, "residues": {"protein": 4, "water": 3, "A|B": 1}, "box": [1.5, 2, 3, 90, 90, 90]}
    more = with_record(
        rmsd,
        tmp_path / "more",
        system=system,
        ensemble=[{**MEMBER, "name": str(i), "group": "ab"[i > 2]} for i in range(5)],
        digests={"/home/me/shell.py": "12ab", "/usr/lib/other.py": "cd"},
        code_folders=["/home/me"],
        analyses=[
            {"name": "IonShell", "parameters": {}, "source": "/home/me/shell.py:IonShell"},
            {"name": "Cell", "parameters": {}, "source": None, "unrepeatable": "it was defined in a notebook"},
        ],
        equilibration="auto",
    )
    answers = checklist(more)
    assert answers["1c"][0].startswith("No: simulations by condition are `a`: 3, `b`: 2;")
    assert answers["4a"][0] == (
        "Box of the first frame: 1.5 x 2 x 3 Å, 90, 90, 90°. Atoms: 9. Water molecules: 3. Other residues: protein "
        r"4, A\|B 1."
    )
    cell = "Analysis: `Cell`, of which there is no file (it was defined in a notebook)."
    assert answers["4e"] == ["Analysis: `shell.py`, SHA-256 12ab.", cell]
    assert "what is before equilibration was left out" in answers["1b"][0]
    texts = {"rmsd": {**UNCERTAINTY, "means": {"rmsd": {**MEAN, "halves": [2, 1, 3]}}}}
    timed = with_record(rmsd, tmp_path / "timed", uncertainty=texts)
    halves = "`rmsd`: equilibrated from 4 ps, its halves differ, 9.1 independent values, interval by T."
    assert checklist(timed)["1a"] == [halves]
