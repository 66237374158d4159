"""What map() yields becomes blocks: which form pairs are kept in."""

import numpy as np

import himach
from himach.engine.pairs.block import Form
from himach.engine.pairs.emission import Emission
from himach.engine.stamps import Stamps


def forms(emission, *yields, last=False):
    """Return the forms of the blocks of a chunk in which each frame yields one item."""
    for number, item in enumerate(yields):
        emission.begin(number, float(number), None)
        emission.extend(item)
    return [block.form for block in emission.close_chunk(8, last)]


def test_presence_is_bits_again_after_a_chunk_with_a_key_twice_in_a_frame():
    emission = Emission(Stamps())
    once, twice = himach.Pairs(np.arange(5)), himach.Pairs([1, 1])
    assert forms(emission, once, twice, once) == [Form.PAIR]
    assert forms(emission, once, once) == []
    assert forms(emission, once, last=True) == [Form.BITS]
