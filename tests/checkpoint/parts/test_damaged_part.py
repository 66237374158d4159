"""No damage of a file is taken for pairs: each byte is torn off, each bit flipped."""

import os
import pickle

import pytest
from support.needs import sample

import himach
from himach.checkpoint.parts.part import HEAD, MAGIC, VERSION, BadPartError, open_part
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
                refused(small)
            os.pwrite(file.fileno(), bytes([byte]), place)
    assert open_part(small, pickles=False).pairs == 2


def test_every_page_exchanged_or_empty(tmp_path):
    path = Made(some_frames(200)).write(tmp_path)
    data = path.read_bytes()
    for page in range(0, len(data), 512):
        for other in (bytes(512), data[512:1024], data[-512:]):
            torn = data[:page] + other + data[page + 512 :]
            if torn != data:
                path.unlink()
                path.write_bytes(torn)
                refused(path)


class Bomb:
    def __reduce__(self):
        return os._exit, (3,)


@pytest.mark.parametrize("description", [b"", b"no pickle", pickle.dumps([1]), pickle.dumps(Bomb())])
def test_a_description_that_makes_no_sense(small, description):
    """Of which the checksum is right: nothing is run that it names."""
    small.write_bytes(HEAD.pack(MAGIC, VERSION, crc32c(description), HEAD.size) + description)
    assert "makes no sense" in refused(small)


def test_other_versions_and_files(small):
    data = small.read_bytes()
    small.write_bytes(HEAD.pack(MAGIC, VERSION - 1, *HEAD.unpack_from(data)[2:]) + data[HEAD.size :])
    assert f"the format {VERSION - 1}" in refused(small)
    small.write_bytes(b"HDF5    " + data[8:])
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
    part = open_part(path, pickles=False)
    os.truncate(path, 1024)
    with pytest.raises(BadPartError, match="torn"):
        part.on_disk()[0].part(0, 512)
