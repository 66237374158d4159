"""Words that leave open what they stand for are not names: their numbers fall, and never rise."""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Participles and pronouns; a noun in their place tells what there is.
WORDS = {
    "asked", "begin", "ends", "found", "given", "held", "holding", "look", "of", "one", "others", "said", "seen",
    "settle", "shown", "since", "some", "told", "wanted",
}  # fmt: skip
#: House -> names that are such a word. Figures only fall.
CEILINGS = {"himach": 314, "native": 41, "tests": 2083}
#: Comments and texts of Cython and C.
TEXTS = re.compile(r'"""(?:.|\n)*?"""|/\*(?:.|\n)*?\*/|//.*|#(?!\w).*|"(?:\\.|[^"\n])*"|\'(?:\\.|[^\'\n])*\'')


def names(path: Path) -> list[str]:
    """Return the names in a source file, each as often as it is there."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return re.findall(r"[A-Za-z_]\w*", TEXTS.sub(" ", text))
    return [
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.NAME
    ]


@pytest.mark.parametrize("house", CEILINGS)
def test_names_are_nouns(house):
    files = [path for path in (ROOT / house).rglob("*") if path.suffix in {".py", ".pyx", ".pyi", ".pxi", ".c", ".h"}]
    counts = dict.fromkeys(sorted(WORDS), 0)
    for name in (name.strip("_") for path in files for name in names(path)):
        if name in counts:
            counts[name] += 1
    assert len(files) > 50, "files are not found"
    assert sum(counts.values()) <= CEILINGS[house], counts
