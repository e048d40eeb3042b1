"""What the filter forbids is in no feasible plan."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given, settings

from ilp_parallel.problems.sharding import evaluate
from ilp_parallel.sharding.memory_filter import filter_memory
from tests.sharding.instances import random_sharding, seeds


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_filter_keeps_every_feasible_plan(seed: int) -> None:
    instance = random_sharding(seed)
    filtered = filter_memory(instance)
    for choice in product(*(range(k) for k in instance.sizes().tolist())):
        plan = np.array(choice, dtype=np.int64)
        assert not evaluate(instance, plan).feasible or evaluate(filtered, plan).feasible
