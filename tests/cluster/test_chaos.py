"""A few faults at random; `tests/cluster/run chaos` does many."""

import random

import chaos
import pytest


@pytest.mark.long
def test_a_few_faults():
    told = chaos.run(6, random.randrange(10**6))
    assert not told["wrong"], told
    assert told["history"].get("executed", 0) > 0, told
