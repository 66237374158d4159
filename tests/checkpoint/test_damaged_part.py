"""No damage and no lie of a file is taken for pairs: bytes are torn off, bits flipped, columns made up."""

import io
import json
import os
import struct
import tracemalloc
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest
from support.needs import sample

import himach
from himach.checkpoint.objects import PARSE_ERRORS, Packer, unpack
from himach.checkpoint.part import DESCRIPTION, BadPartError, open_part, read_summary
from himach.engine.pairs.block import SHARDS

from .test_part import Made, exact, some_frames, twin


@pytest.fixture
def made():
    """Return pairs with values and objects, and presence."""
    return Made([[[himach.Pairs([1], [0.5]), ("a", "b"), (2, (1, None)), (2, np.arange(3))]]])


@pytest.fixture
def small(made, tmp_path):
    return made.write(tmp_path)


def refused(path, **named):
    with pytest.raises(BadPartError) as error:
        open_part(path, trusted=False, **named)
    assert path.name in str(error.value)
    return str(error.value)


def refused_or_equal(path, made):
    """Open a damaged part as one that nobody else can write; return whether it was refused."""
    try:
        part = open_part(path, trusted=True)
    except BadPartError:
        return True
    assert part.covered == made.covered and part.frames.times.tobytes() == made.table.times.tobytes()
    assert twin(part.chosen()[0], part.frames.steps) == twin(made.blocks, made.numbers)
    return False


@contextmanager
def little_memory():
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20e6


def test_lengths(small):
    data = small.read_bytes()
    for length in sample(range(len(data)), 200):
        os.truncate(small, length)
        refused(small)
        small.write_bytes(data)
    assert open_part(small, trusted=False).pairs == 4


def test_bits(tmp_path):
    """Of 200 bytes each time, of all by night. Some are of no matter: dates, say."""
    made = Made([[[himach.Pairs(np.arange(1000), np.arange(1000.0)), ("a", "b")]]])
    small = made.write(tmp_path)
    data, refusals = small.read_bytes(), 0
    places = sample(range(len(data)), 200)
    with small.open("r+b", buffering=0) as file:
        for place in places:
            byte = data[place]
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), place)
                refusals += refused_or_equal(small, made)
            os.pwrite(file.fileno(), bytes([byte]), place)
    assert refusals > 0.9 * 8 * len(places)
    assert open_part(small, trusted=False).pairs == 1001


def rewrite(path, **members):
    """Write members of a part anew, with checksums that are right: arrays, or bytes; None leaves one out."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    for name, member in members.items():
        stream = io.BytesIO()
        if isinstance(member, np.ndarray):
            np.lib.format.write_array(stream, member, version=(2, 0))
        content[DESCRIPTION if name == "description" else f"{name}.npy"] = stream.getvalue() or member
    path.unlink()
    with zipfile.ZipFile(path, "w") as archive:
        for name, member in content.items():
            if member is not None:
                archive.writestr(name, member)


def described(path):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(DESCRIPTION))


def test_numpy_reads_a_part_and_a_rewritten_one_is_whole(small, made):
    with np.load(small, allow_pickle=False) as columns:
        assert columns["covered"].tolist() == [0] and columns["0.values"].tolist() == [0.5]
    before = small.read_bytes()
    rewrite(small)
    assert small.read_bytes() != before
    assert not refused_or_equal(small, made)


LIES = [2**62, 2**63, 2**64, -1, -(2**63), 0, 1, 1.5, "1", None, True, [], {}, [[]], "pickle", "remove"]


def places(description, path=()):
    """Give the path of everything in a description."""
    yield path
    if isinstance(description, dict | list):
        for name, inner in description.items() if isinstance(description, dict) else enumerate(description):
            yield from places(inner, (*path, name))


def lied(description, path, lie):
    """Return a description with a lie in one place."""
    if not path:
        return lie
    inner = description
    for name in path[:-1]:
        inner = inner[name]
    if lie == "remove":
        del inner[path[-1]]
    else:
        inner[path[-1]] = lie
    return description


def test_lies_of_a_description_are_refused_or_make_another_part(small):
    """Whatever stands in place of whatever, with right checksums: no other error, and no large allocation."""
    refusals = 0
    with little_memory():
        for path in list(places(described(small))):
            for lie in LIES:
                before = small.read_bytes()
                rewrite(small, description=json.dumps(lied(described(small), path, lie)).encode())
                try:
                    open_part(small, trusted=False).chosen()
                except BadPartError:
                    refusals += 1
                small.unlink()
                small.write_bytes(before)
    assert refusals > 100


def headed(text, content=b""):
    """Return a column with this header."""
    data = text.encode()
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(data)) + data + content


def shaped(descr, shape):
    return headed(repr({"descr": descr, "fortran_order": False, "shape": shape}))


COLUMNS = {
    "objects": shaped("|O", (1,)),
    "texts of any length": shaped("T", (1,)),
    "large": shaped("<f8", (2**61,)),
    "negative": shaped("<f8", (-1,)),
    "overflowing": shaped("<f8", (2**62, 4)),
    "of no bytes": shaped("|V0", (1, 2**40, 2**40)),
    "of no rows": shaped("|V8", (0, 2**61)),
    "many dimensions": shaped("<f8", (0,) * 65),
    "no dimension": shaped("<f8", ()),
    "short": shaped("<f8", (2,)),
    "by columns": headed("{'descr': '<f8', 'fortran_order': True, 'shape': (0,)}"),
    "deep": headed("[" * 50_000),
    "deep type": shaped([("a", [("b", "3f8,(")])], (1,)),
    "code": headed("__import__('os').abort()"),
    "a long header": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1),
    "of version 1": b"\x93NUMPY\x01\x00",
    "empty": b"",
    "missing": None,
    "another type": np.zeros(1, dtype="S3"),
    "more rows": np.zeros(2),
}


@pytest.mark.parametrize("member", ["0.at", "0.keys", "0.bounds", "covered", "numbers", "times"])
@pytest.mark.parametrize("column", COLUMNS)
def test_columns_that_make_no_sense(small, member, column):
    content = COLUMNS[column]
    with little_memory():
        if member == "times" and column == "more rows":
            content = np.zeros(3)
        rewrite(small, **{member: content})
        refused(small)


@pytest.mark.parametrize("numbers", [[-1], [2**48], [2**62], [1]])
def test_coverage_that_makes_no_sense(small, numbers):
    """The last one lacks a frame of which there are pairs."""
    rewrite(small, covered=np.array(numbers))
    assert "cover" in refused(small)
    if numbers != [1]:
        with pytest.raises(BadPartError):
            read_summary(small)


@pytest.mark.parametrize("name", ["bounds", "stops"])
def test_sizes_that_make_no_sense(small, name):
    with np.load(small) as columns:
        values = {member: columns[member] for member in columns.files if member.endswith(f".{name}")}
    for member, column in values.items():
        for place in range(len(column))[:: max(1, len(column) // 3)]:
            for lie in (-1, 2**40, 2**62):
                false = column.copy()
                false[place] = lie
                rewrite(small, **{member: false})
                refused(small)
                rewrite(small, **{member: column})


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"null", b"[" * 100_000, b"9" * 10_000, b"\xff\xfe", b"{" * 2**25])
def test_descriptions_that_make_no_sense(small, text):
    rewrite(small, description=text)
    with little_memory():
        refused(small)
        with pytest.raises(BadPartError):
            read_summary(small)


def test_rows_of_frames_that_are_not_there(tmp_path):
    for items in ([himach.Pairs([1], [0.5])], [himach.Pairs([1])]):
        made = Made([[items] * 3])
        for block in made.blocks:
            block.at[:] += 3
        refused(made.write(tmp_path))
    bits = Made([[[himach.Pairs([1])] if frame % 2 else [himach.Pairs([2])] for frame in range(40)]])
    for block in bits.blocks:
        block.values[:] |= np.uint64(1 << 41)
    refused(bits.write(tmp_path))


def test_objects_that_are_made_up():
    """Each byte of some objects is another one: what is read is refused, or other values, and not large."""
    values = [1, 2.5, "text", None, (1, ("a", 2j)), b"x", np.arange(3), 1 << 80, True, np.float32(2), np.str_("u"), ()]
    data = Packer(False).pack(values)
    assert list(map(exact, unpack(np.frombuffer(data, np.uint8), len(values), False))) == list(map(exact, values))
    refusals = 0
    with little_memory():
        for place in sample(range(len(data)), 300):
            for byte in (0, 1, 0x7F, 0xFF, data[place] ^ 1, ord('"'), ord("9")):
                false = np.frombuffer(data[:place] + bytes([byte]) + data[place + 1 :], np.uint8)
                try:
                    assert len(unpack(false, len(values), False)) == len(values)
                except PARSE_ERRORS:
                    refusals += 1
    assert refusals > 100


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (["scalar", "|V0", 0], b""),
        (["array", "<f8", 2], struct.pack("<qq", 2**40, 2**22)),
        (["array", "|V0", 1], struct.pack("<q", 2**40)),
        (["tuple", "", 0], struct.pack("<q", 2**40)),
        (["str", "", 0], struct.pack("<Iq", 0, 2**40)),
        (["str", "", 0], struct.pack("<I", 2**32 - 1)),
        (["pickle", "", 0], struct.pack("<Iq", 0, 1) + b"."),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_objects_larger_than_their_bytes(kind, content):
    text = json.dumps([kind]).encode()
    data = np.frombuffer(struct.pack("<I", len(text)) + text + b"\0" + content, np.uint8)
    with little_memory(), pytest.raises(PARSE_ERRORS):
        unpack(data, 1, False)


def test_a_part_that_changes_while_it_is_read(tmp_path):
    """A row that is behind all frames is never given to those who count on it."""
    path = Made([[[himach.Pairs([1], [0.5])]] * 3]).write(tmp_path)
    part = open_part(path, trusted=False)
    (block,) = part.on_disk()
    with open(path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), struct.pack("<I", 1 << 30), block.starts["at"])
    with pytest.raises(BadPartError, match="frames that are not there"):
        block.part(0, SHARDS)
    os.truncate(path, 300)
    with pytest.raises(BadPartError, match="shorter"):
        block.part(0, SHARDS)


def test_a_file_that_is_not_kept_open_is_the_same_one(tmp_path):
    path = Made(some_frames(20)).write(tmp_path)
    part = open_part(path, trusted=True)
    part.close()
    assert part.chosen()[0]
    os.utime(path, (1, 1))
    with pytest.raises(BadPartError, match="another file"):
        part.chosen()
