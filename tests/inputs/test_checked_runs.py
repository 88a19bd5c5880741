"""What is found before the start: runs that are refused write nothing, notes come once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.config.errors import ConfigError
from naspipe.wire.reports import Observer
from tests.inputs.convolutions import STEM, conv, data, head
from tests.thinned import long


@pytest.mark.parametrize("stages", [1, long(2), 3])
def test_a_run_writes_nothing(tmp_path, stages):
    space = npp.Space("mine", [STEM, npp.Block([conv(8, 8), conv(8, 12)]), head()])
    with pytest.raises(ConfigError, match=r"^block 0: candidate 1 returns \[4, 12, 8, 8\]"):
        npp.train(
            space, data, nn.CrossEntropyLoss(), steps=2, stages=stages, run_dir=tmp_path / "run"
        )
    assert not any(tmp_path.iterdir())


class Listening(Observer):
    def __init__(self):
        self.notes = []

    def on_note(self, text):
        self.notes.append(text)


def test_notes_come_once_and_without_an_observer_on_stderr(tmp_path, capsys):
    """Of candidates that are alike on any stages; of what a run gains where there are several."""
    space = npp.Space(
        "mine",
        [npp.Shared("stem", conv(3, 8)), npp.Block([conv(8, 8), conv(8, 8), nn.Identity]), head()],
    )
    seen = {}
    for stages in (1, 2):
        observer = Listening()
        how = {"steps": 12, "sampler": "spaced:4", "stages": stages}
        npp.train(
            space, data, nn.CrossEntropyLoss(), run_dir=tmp_path / str(stages), observer=observer,
            **how,
        )  # fmt: skip
        seen[stages] = observer.notes
    assert len(seen[1]) == 1 and seen[1][0].startswith("block 0: candidates 0 and 1 are alike")
    assert seen[2][:1] == seen[1] and len(seen[2]) == 3
    assert seen[2][1].startswith("sampler spaced:4: block 0 has 3 candidates")
    assert "layer stem (exact)" in seen[2][2]
    assert capsys.readouterr().err == ""
    how = {"steps": 1, "progress": False}
    npp.train(space, data, nn.CrossEntropyLoss(), run_dir=tmp_path / "more", **how)
    assert capsys.readouterr().err == f"naspipe: {seen[1][0]}\n"


class Doubles(nn.Module):
    def forward(self, x):
        x.data.mul_(2)
        return x + 1


@pytest.mark.parametrize("stages", [1, 2])
def test_an_edit_that_torch_does_not_count_is_found_before_the_start(tmp_path, stages):
    space = npp.Space("mine", [STEM, npp.Block([conv(8, 8), Doubles]), head()])
    with pytest.raises(ConfigError, match=r"^block 0\.1 \(Doubles\) changes its input in place"):
        npp.train(
            space, data, nn.CrossEntropyLoss(), steps=2, stages=stages, run_dir=tmp_path / "run"
        )
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("stages", [1, 2])
def test_a_loss_that_is_no_tensor_is_named_on_any_stages(tmp_path, stages):
    """Its value is needed, so that nothing but a run or a profile finds it."""

    def number(output, target):
        return nn.functional.cross_entropy(output, target).item()

    space = npp.Space("mine", [STEM, npp.Block([conv(8, 8), nn.Identity]), head()])
    with pytest.raises(ConfigError, match=r"found float; return a tensor that gradients go back"):
        npp.train(space, data, number, steps=2, stages=stages, run_dir=tmp_path / "run")


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize(
    ("dtype", "said"),
    [
        (torch.float64, r"\[4, 8\] float64 \(as of NumPy; \.float\(\) makes float32\), found Runt"),
        (
            torch.int64,
            r"\[4, 8\] int64, found RuntimeError: mat1 and mat2 must have the same dtype",
        ),
    ],
)
def test_numbers_of_another_type_are_found_before_the_start(tmp_path, stages, dtype, said):
    def batches(seed, number):
        return {"input": torch.ones(4, 8).to(dtype), "target": torch.arange(4)}

    stem = npp.Shared("stem", lambda: nn.Linear(8, 8))
    space = npp.Space("mine", [stem, npp.Block([nn.ReLU, nn.Identity])])
    loss = nn.CrossEntropyLoss()
    with pytest.raises(ConfigError, match=f"^layer stem .* to take the batch's input, {said}"):
        npp.train(space, batches, loss, steps=2, stages=stages, run_dir=tmp_path / "run")
    assert not any(tmp_path.iterdir())


def test_held_out_data_that_does_not_fit_is_found_before_the_start(tmp_path):
    def held_out(seed, number):
        return {**data(seed, number), "input": torch.ones(4, 1, 8, 8)}

    space = npp.Space("mine", [STEM, npp.Block([conv(8, 8), nn.Identity]), head()])
    with pytest.raises(ConfigError, match=r"^held-out data: layer stem \(Conv2d\): expected to"):
        npp.train(
            space, data, nn.CrossEntropyLoss(), steps=2, held_out=held_out, validate_every=2,
            run_dir=tmp_path / "run",
        )  # fmt: skip
    assert not any(tmp_path.iterdir())
