"""No damage and no lie of a file is taken for pairs: each byte is torn off, each bit flipped, each header made up."""

import json
import os
import struct
import tracemalloc

import numpy as np
import pytest
from support.needs import sample

import himach
from himach.checkpoint.parts.columns import HEAD, HEAD_BYTES, MAGIC, VERSION, BadPartError
from himach.checkpoint.parts.part import open_part, read_summary
from himach.io.store.bodhi import crc32c

from .emitted import Made, some_frames


@pytest.fixture
def small(tmp_path):
    """Return the path of a small part, of pairs with values and of objects."""
    return Made([[[himach.Pairs([1], [0.5]), ("a", "b")]]]).write(tmp_path)


def refused(path, **named):
    with pytest.raises(BadPartError) as error:
        open_part(path, pickles=False, **named)
    assert path.name in str(error.value)
    return str(error.value)


def test_every_length(small):
    data = small.read_bytes()
    for length in reversed(range(len(data))):
        os.truncate(small, length)
        refused(small)
    small.write_bytes(data + b"\0")
    refused(small)
    small.write_bytes(data)
    assert open_part(small, pickles=False).pairs == 2


def test_every_bit(small):
    """Of 200 bytes each time, of all by night."""
    data = small.read_bytes()
    with small.open("r+b", buffering=0) as file:
        for place in sample(range(len(data)), 200):
            byte = data[place]
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), place)
                try:
                    open_part(small, pickles=False, load=bool(bit & 1))
                except BadPartError:
                    continue
                pytest.fail(f"bit {bit} of byte {place} of {len(data)} may be flipped")
            os.pwrite(file.fileno(), bytes([byte]), place)
    assert open_part(small, pickles=False).pairs == 2


def test_every_page_exchanged_or_empty(tmp_path):
    path = Made(some_frames(200)).write(tmp_path)
    data = path.read_bytes()
    pages = range(0, len(data), 512)
    for page in pages:
        for other in (bytes(512), data[512:1024], data[-512:]):
            torn = data[:page] + other + data[page + 512 :]
            if torn != data:
                path.unlink()
                path.write_bytes(torn)
                refused(path)


def headed(columns, text, version=VERSION, magic=MAGIC):
    end = HEAD_BYTES + len(columns)
    head = HEAD.pack(magic, version, crc32c(text), end + len(text), end)
    return head + struct.pack("<I", crc32c(head)) + columns + text


def test_a_rewritten_part_is_whole(small):
    data = small.read_bytes()
    end = HEAD.unpack_from(data)[4]
    small.write_bytes(headed(data[HEAD_BYTES:end], json.dumps(json.loads(data[end:])).encode()))
    assert small.read_bytes() != data
    assert open_part(small, pickles=False).pairs == 2


LIES = [2**62, 2**63, 2**64, -1, -(2**63), 0, 1, 1.5, "1", None, True, [], {}, [[]], "pickle", "remove"]


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


def places(description, path=()):
    """Give the path of everything in a description."""
    yield path
    if isinstance(description, dict):
        description = list(description.items())
    elif isinstance(description, list):
        description = list(enumerate(description))
    else:
        return
    for name, inner in description:
        yield from places(inner, (*path, name))


@pytest.mark.nightly
def test_lies_of_a_description_are_refused_or_make_another_part(small):
    """Whatever stands in place of whatever, with right checksums: no other error, and no large allocation."""
    data = small.read_bytes()
    end = HEAD.unpack_from(data)[4]
    tracemalloc.start()
    refusals = 0
    for path in list(places(json.loads(data[end:]))):
        for lie in LIES:
            small.unlink()  # a file that is emptied and written again waits for the disk
            small.write_bytes(
                headed(data[HEAD_BYTES:end], json.dumps(lied(json.loads(data[end:]), path, lie)).encode())
            )
            try:
                part = open_part(small, pickles=False)
            except BadPartError:
                refusals += 1
            else:
                part.chosen()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refusals > 500
    assert peak < 20e6


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"columns":' * 10_000,
        b"9" * 10_000,
        b"\xff\xfe",
        b'{"identity":"","columns":[["O",[1],0]]}',
        b'{"identity":"","columns":[["<f8",[4611686018427387904],0]]}',
        b'{"identity":"","columns":[["<f8",[4611686018427387903,0,5],0]]}',
        b'{"identity":"","columns":[["<f8",[-8],0],["<f8",[8],0]]}',
        b'{"identity":"","columns":[[["<f8",[4611686018427387904]],[1],0]]}',
        b'{"identity":"","columns":[["(2,3)f8,(",[1],0]]}',
        b'{"identity":"","columns":[["i4,f8",[1],0]]}',
    ],
    ids=lambda text: repr(text[:20]),
)
def test_descriptions_that_make_no_sense(small, text):
    tracemalloc.start()
    small.write_bytes(headed(b"", text))
    refused(small)
    with pytest.raises(BadPartError):
        read_summary(small)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6


def described(path, change):
    """Change the description of a part, with checksums that are right."""
    data = path.read_bytes()
    end = HEAD.unpack_from(data)[4]
    description = json.loads(data[end:])
    columns = bytearray(data[HEAD_BYTES:end])
    change(description, columns)
    path.write_bytes(headed(bytes(columns), json.dumps(description).encode()))


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("scalar", [["|V0", [2**40], 0]]),
        ("array", [["<i8", [2**40, 0], 0], ["<f8", [0], 0]]),
        ("array", [["<i8", [2**40, 0], 0], ["|V0", [2**40], 0]]),
    ],
)
def test_any_number_of_objects_of_no_bytes(tmp_path, kind, columns):
    """Which a tuple of so many has: it is refused before there is an object for each."""
    path = Made([[[(1, (None,))]]]).write(tmp_path)

    def change(description, data):
        (block,) = description["blocks"]
        (values,) = block["objects"]["values"]
        before = description["columns"]
        sizes = [-(-np.dtype(text).itemsize * int(np.prod(shape)) // 64) * 64 for text, shape, _ in before]
        start = sum(sizes[: values[1]])
        data[start : start + 8] = struct.pack("<q", 2**40)
        before[values[1]][2] = crc32c(bytes(data[start : start + 64]))
        values[2] = [kind, *range(len(before), len(before) + len(columns))]
        before += columns

    described(path, change)
    assert "no bytes" in refused(path)


@pytest.mark.parametrize(
    ("dtype", "shape", "message"),
    [
        ("[" + "-" * 100_000 + "1]", [1], "a type makes no sense"),
        ("3f8", [1], "are not kept as columns"),
        ("O", [4], "are not kept as columns"),
        ("T", [4], "are not kept as columns"),
        ("[('a', 'T')]", [4], "are not kept as columns"),
        ("|V0", [1, 2**40, 2**40], "a shape that no array has"),
        ("|V8", [0, 2**61], "a shape that no array has"),
        ("<f8", [0] * 65, "a shape that no array has"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_types_and_shapes_that_no_column_has(small, dtype, shape, message):
    described(small, lambda description, _: description["columns"].append([dtype, shape, 0]))
    assert message in refused(small)


def test_a_part_that_is_made_up_while_it_is_read(tmp_path):
    """A row that is behind all frames is never given to those who count on it."""
    made = Made([[[himach.Pairs([1], [0.5])]] * 3])
    path = made.write(tmp_path)
    part = open_part(path, pickles=False, load=False)
    (block,) = part.on_disk()
    number = block._columns["at"]
    with open(path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), struct.pack("<I", 1 << 30), part._file._columns[number].start)
    with pytest.raises(BadPartError, match="frames that are not there"):
        block.part(0, 512)


@pytest.mark.parametrize("runs", [[0, 2**27 + 1], [2**48, 1], [-1, 3], [0, 0], [0, -1], [0, 2**62], [2**62, 5]])
def test_coverage_that_would_fill_memory(small, runs):
    cover(small, runs, 1)
    assert "covered" in refused(small)


def covered_start(description):
    """Return where in a part of one run of frames their column begins."""
    number = description["covered"][1]
    sizes = [np.dtype(dtype).itemsize * int(np.prod(shape)) for dtype, shape, _ in description["columns"]]
    assert sizes[number] == 16
    return HEAD_BYTES + sum(-(-size // 64) * 64 for size in sizes[:number])


def cover(path, runs, step):
    """Say that a part covers these frames, with checksums that are right."""
    data = bytearray(path.read_bytes())
    end = HEAD.unpack_from(data)[4]
    description = json.loads(data[end:])
    number, start = description["covered"][1], covered_start(description)
    data[start : start + 16] = np.array(runs, np.int64).tobytes()
    description["columns"][number][2] = crc32c(bytes(data[start : start + 64]))
    description["covered"][0] = step
    path.write_bytes(headed(bytes(data[HEAD_BYTES:end]), json.dumps(description).encode()))


def test_a_summary_of_other_frames_is_refused(small):
    data = small.read_bytes()
    start = covered_start(json.loads(data[HEAD.unpack_from(data)[4] :]))
    for byte in range(start, start + 16):
        small.write_bytes(data[:byte] + bytes([data[byte] ^ 1]) + data[byte + 1 :])
        with pytest.raises(BadPartError, match="damaged"):
            read_summary(small)


def test_coverage_of_frames_far_from_one_another(small):
    cover(small, [0, 2**26], 2**17)
    assert "covered" in refused(small)
    cover(small, [0, 2**10], 2**17)
    assert len(read_summary(small).covered) == 2**10


def test_pairs_of_frames_that_are_not_covered(small):
    cover(small, [1, 5], 1)
    assert "not cover" in refused(small)


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


def test_other_versions_and_files(small, tmp_path):
    data = small.read_bytes()
    end = HEAD.unpack_from(data)[4]
    small.write_bytes(headed(data[HEAD_BYTES:end], data[end:], version=VERSION + 1))
    assert f"the format {VERSION + 1}" in refused(small)
    small.write_bytes(headed(data[HEAD_BYTES:end], data[end:], magic=b"HDF5    "))
    assert "no file of kept pairs" in refused(small)
    small.unlink()
    assert "No such file" in refused(small)
    os.mkfifo(small)
    assert "no file" in refused(small)
    small.unlink()
    small.mkdir()
    refused(small)


def test_a_part_that_becomes_shorter_while_it_is_read(tmp_path):
    path = Made(some_frames(200)).write(tmp_path)
    part = open_part(path, pickles=False, load=False)
    os.truncate(path, 4096)
    with pytest.raises(BadPartError, match="shorter"):
        part.chosen()
