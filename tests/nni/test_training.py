"""Training NNI's spaces through naspipe against a plain loop over NNI's own modules."""

from __future__ import annotations

import pytest

from tests.nni.compare import differences, stages_agree
from tests.thinned import long


@pytest.mark.parametrize(
    ("name", "stages"), [("proxyless", 2), long("shufflenet", 1), ("nasbench201", 1)]
)
def test_steps_leave_the_bits_of_nnis_loop(tmp_path, name, stages):
    assert differences(name, tmp_path / "run", steps=4, stages=stages) == []


def test_the_comparison_can_fail(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.nni.compare.NniLoop", _Another)
    assert differences("nasbench201", tmp_path / "run", steps=2, stages=1)


class _Another:
    """Trains with another learning rate."""

    def __new__(cls, space, lr, drawing):
        from tests.nni.plain import NniLoop

        return NniLoop(space, lr * (1 + 1e-7), drawing)


@pytest.mark.parametrize(
    "name",
    [
        "own",
        *(pytest.param(n, marks=pytest.mark.long) for n in ("autoformer", "nds", "mobilenetv3")),
    ],
)
def test_spaces_with_open_sizes_train_on_two_stages_as_on_one(tmp_path, name):
    assert stages_agree(name, tmp_path, steps=5, stages=2) == []
