"""The examples in the engine's docstrings."""

import doctest

import pytest

from himach.engine.pairs import block, keys, values


@pytest.mark.parametrize("module", [block, keys, values])
def test_examples_show_what_happens(module):
    failed, attempted = doctest.testmod(module)
    assert attempted and not failed
