"""An NNI space as a student: cut at its stages, each taught by one of the teacher's blocks."""

from __future__ import annotations

import pytest
import torch

import naspipe
import search_spaces
from naspipe.store.run_directory import RunDirectory
from tests.equivalence.plain_blockwise import assert_blocks
from tests.equivalence.test_named_students import scores, squares
from tests.nni.spaces import ProxylessNAS, make

STAGES = [f"s{number}_i0" for number in range(3, 8)]
"""The labels with which the second stage begins, the third one, ..."""

IMAGES = {"channels": 3, "height": 64, "width": 64, "classes": 10}
WIDTHS = (8, 8, 8, 8, 16, 24, 40, 80, 320)
"""Those of a tiny MobileNetV2, whose maps the hub's ProxylessNAS has, too."""

SEED, LR = 2, 0.01


def student():
    torch.manual_seed(7)
    return naspipe.from_nni(ProxylessNAS(num_labels=10, base_widths=WIDTHS))


def batches(seed, sequence_id):
    draw = torch.Generator().manual_seed(seed * 1_000_003 + sequence_id)
    return {
        "input": torch.randn(4, 3, 64, 64, generator=draw),
        "target": torch.randint(0, 10, (4,), generator=draw),
    }


@pytest.mark.long
def test_its_stages_learn_with_the_bits_of_a_plain_loop(tmp_path):
    torch.manual_seed(1)
    layers = search_spaces.build("mobilenet-v2", "tiny", IMAGES).blocks
    teacher = naspipe.Teacher([each.candidates[0]() for each in layers])
    blocks = teacher.blocks(search_spaces.cuts("mobilenet-v2"))
    space = student()
    parts = space.cut(map(space.decisions.first_block, STAGES))
    found = naspipe.distill_blockwise(
        blocks, parts, batches, steps=4, stages=2, seed=SEED, lr=LR, run_dir=tmp_path / "run"
    )
    losses = [*[squares] * 5, scores]
    assert_blocks(found, blocks, batches, seed=SEED, losses=losses, lr=LR)
    proofs = [RunDirectory(run.directory.path).read_manifest()["proof"] for run in found.blocks]
    assert proofs[0]["layers_compared"] == proofs[0]["layers"] and not any(proofs[1:])


def test_the_decisions_of_the_parts_are_those_of_the_whole():
    space = student()
    parts = space.cut(map(space.decisions.first_block, STAGES))
    assert [part.candidate_counts for part in parts] == [*[(6, 7, 7, 7)] * 5, (6,)]
    names = [label for part in parts for label in part.decisions.values]
    assert sorted(names) == sorted(space.decisions.values)
    sample = {label: options[-1] for label, options in space.decisions.values.items()}
    choices = [part.decisions.choices_of(sample) for part in parts]
    assert sum(choices, ()) == space.decisions.choices_of(sample)
    for part, own in zip(parts, choices, strict=True):
        found = part.decisions.sample_of(own)
        assert found.items() <= sample.items() and set(found) == set(part.decisions.values)


def test_a_label_on_both_sides_of_a_cut_is_refused():
    space = naspipe.from_nni(make("nasbench201"))
    with pytest.raises(naspipe.ConfigError, match="cut where no label is on both sides, found"):
        space.cut([len(space) // 2])
    with pytest.raises(naspipe.ConfigError, match="no label 's9_i0': expected one of"):
        space.decisions.first_block("s9_i0")
