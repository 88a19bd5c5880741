"""nlp.c3 and cv.c3 at tiny scale on real data: bits equal to the plain loop's on 1 to 4 stages.

Sixty steps of the whole product of these factors are `scripts/check_bits.py`, with
its result in `artifacts/bits/`; here every factor appears on two to four numbers of stages.
"""

from __future__ import annotations

import pytest

from naspipe.inputs.named import find_workload
from tests.equivalence.harness import check
from tests.thinned import long

MOMENTUM = {"momentum": 0.9, "weight_decay": 1e-4}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "optimizer", "lr", "options", "recompute", "sampler", "stages"),
    [
        pytest.param("nlp.c3", "Adam", 1e-3, None, True, "uniform", (1, 4), marks=pytest.mark.long),
        long("nlp.c3", "SGD", 0.05, MOMENTUM, False, "spaced:8", (2,)),
        ("nlp.c3", "SGD", 0.05, MOMENTUM, False, "spaced:8", (3,)),
        long("cv.c3", "Adam", 1e-3, None, False, "uniform", (2, 4)),
        long("cv.c3", "SGD", 0.05, MOMENTUM, True, "fair", (1,)),
        ("cv.c3", "SGD", 0.05, MOMENTUM, True, "fair", (3,)),
    ],
)
def test_real_spaces(tmp_path, name, optimizer, lr, options, recompute, sampler, stages):
    named = find_workload(name, "tiny", None, None)
    check(
        tmp_path, named.space, named.data, named.loss, steps=8, stages=stages, optimizer=optimizer,
        lr=lr, options=options, sampler=sampler, execution={"recompute": recompute},
    )  # fmt: skip
