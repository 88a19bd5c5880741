"""What cannot be exported is refused with the reason and the place."""

from __future__ import annotations

import pytest
from torch import nn

import naspipe
from tests.export import own_layers


class Odd(nn.Linear):
    """A layer with something that no file can hold, given by a test."""

    def __init__(self, spoil):
        super().__init__(6, 4)
        spoil(self)


def local_class():
    class Local(nn.Linear):
        pass

    return Local(6, 4)


def set_lambda(layer):
    layer.scale = lambda x: x


def set_hook(layer):
    layer.register_forward_hook(lambda *_: None)


def set_keys(layer):
    layer.table = {(1, 2): 3}


CASES = {
    "lambda": (lambda: Odd(set_lambda), r"all\.scale: .*found function"),
    "hook": (lambda: Odd(set_hook), r"all: Odd has hooks"),
    "keys": (lambda: Odd(set_keys), r"all\.table: expected plain keys, found tuple"),
    "local": (local_class, r"layer all: expected a class that can be imported, found .*Local"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_layers_that_no_file_can_hold(tmp_path, name):
    make, message = CASES[name]
    run = naspipe.train(
        naspipe.Space("odd", [naspipe.Shared("all", make)]), own_layers.batches,
        nn.CrossEntropyLoss(), steps=1, lr=0.01, run_dir=tmp_path / "run",
    )  # fmt: skip
    with pytest.raises(naspipe.ConfigError, match=message) as caught:
        naspipe.export_subnet(run, (), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("out/*"))


def test_another_space_than_the_run_s(tmp_path):
    run = naspipe.train(
        own_layers.space, own_layers.batches, nn.CrossEntropyLoss(), steps=1,
        run_dir=tmp_path / "run",
    )  # fmt: skip
    other = naspipe.Space("own", own_layers.space.blocks[:-1])
    with pytest.raises(naspipe.ConfigError, match=r"expected the blocks stem, 0, 1, head \(4\)"):
        naspipe.export_subnet(naspipe.Run(other, run.directory.path), (0, 0), tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/kept").touch()
    with pytest.raises(
        naspipe.ConfigError, match="new or empty directory; choose another directory="
    ):
        naspipe.export_subnet(run, (0, 0), tmp_path / "out")
    with pytest.raises(naspipe.ConfigError, match="expected 2 choices"):
        naspipe.export_subnet(run, (0,), tmp_path / "other")
