"""Named students of named teachers: the bits of a plain loop, block by block."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import naspipe as npp
import search_spaces
from naspipe.losses import HiddenStates
from search_spaces.nlp.shared_layers import TokenLoss
from tests.equivalence.plain_blockwise import assert_blocks, through

SEED, LR, STEPS = 3, 0.02, 3
IMAGES = {"channels": 1, "height": 8, "width": 8, "classes": 10}
TEXT = {"vocabulary": 40, "padding": 1}


def images(seed, number):
    draw = torch.Generator().manual_seed(seed * 1_000_003 + number)
    return {
        "input": torch.randn(6, 1, 8, 8, generator=draw),
        "target": torch.randint(0, 10, (6,), generator=draw),
    }


def words(seed, number):
    """Four sentences, the last ones with padding behind; a third of the words to be guessed."""
    draw = torch.Generator().manual_seed(seed * 1_000_003 + number)
    whole = torch.randint(2, 40, (4, 9), generator=draw)
    for row in range(4):
        whole[row, 9 - row :] = 1
    is_hidden = (torch.rand(whole.shape, generator=draw) < 0.3) & (whole != 1)
    is_hidden[0, 0] = True
    return {"input": whole.masked_fill(is_hidden, 0), "target": whole.masked_fill(~is_hidden, 1)}


def squares(outputs, lessons, target):
    return functional.mse_loss(outputs[0], lessons[0])


def scores(outputs, lessons, target):
    return functional.cross_entropy(outputs[0], lessons[0].softmax(1))


def hidden(outputs, lessons, target):
    return HiddenStates().distill(*outputs, *lessons)


def guesses(outputs, lessons, target):
    return TokenLoss(1).distill(*outputs, *lessons, target)


def teacher_of(name, info):
    torch.manual_seed(6)
    space = search_spaces.build(name, "tiny", info)
    return npp.Teacher([block.candidates[0]() for block in space.blocks])


@pytest.mark.parametrize(
    ("teacher", "student", "info", "data", "inner", "last"),
    [
        pytest.param(
            "mobilenet-v2", "proxyless", IMAGES, images, squares, scores, marks=pytest.mark.long
        ),
        ("vgg8", "separable", IMAGES, images, squares, scores),
        ("bert-mini", "narrow-encoder", TEXT, words, hidden, guesses),
    ],
)
def test_bits_of_the_plain_loop(tmp_path, teacher, student, info, data, inner, last):
    blocks = teacher_of(teacher, info).blocks(search_spaces.cuts(teacher))
    kind = search_spaces.student_kind(student)
    found = npp.distill_blockwise(
        blocks, search_spaces.students_of(teacher, student, "tiny", info), data, steps=STEPS,
        stages=2, seed=SEED, lr=LR, optimizer_options={"momentum": 0.9}, run_dir=tmp_path / "run",
        loss=kind.loss and kind.loss(), last_loss=kind.last_loss and kind.last_loss(),
    )  # fmt: skip
    losses = [*[inner] * (len(blocks) - 1), last]
    assert_blocks(found, blocks, data, seed=SEED, losses=losses, lr=LR, options={"momentum": 0.9})


def test_a_teacher_in_blocks_is_the_whole_teacher():
    teacher = teacher_of("bert-mini", TEXT)
    given = (words(0, 0)["input"],)
    whole = [block.candidates[0]() for block in teacher.space.blocks]
    (expected,) = through(whole, given)
    (found,) = through(teacher.blocks([2, 3, 4]), given)
    assert torch.equal(found, expected) and len(teacher.blocks([5])) == 2
    for cuts in ([0], [3, 2], [6]):
        with pytest.raises(npp.ConfigError, match="rising places from 1 to 5"):
            teacher.blocks(cuts)


def test_a_teacher_that_takes_more_of_a_batch_has_no_blocks():
    blocks = [npp.Shared("a", torch.nn.Identity), npp.Shared("b", torch.nn.Identity, fields=["m"])]
    teacher = teacher_of("vgg8", IMAGES)
    teacher.space = npp.Space("fields", blocks)
    with pytest.raises(npp.ConfigError, match="input, found m at layer 1"):
        teacher.blocks([1])


def test_padding_is_no_hidden_state():
    torch.manual_seed(2)
    one, other = torch.randn(2, 3, 4, 5)
    mask = torch.tensor([[False] * 4, [False, True, True, True], [False, False, True, True]])
    found = HiddenStates().distill(one, mask, other, mask)
    expected = ((one - other) ** 2)[~mask].mean()
    torch.testing.assert_close(found, expected)
    changed = one.masked_fill(mask[:, :, None], 7.0)
    assert torch.equal(HiddenStates().distill(changed, mask, other, mask), found)


def test_a_pass_that_teaches_already_is_one_line(tmp_path):
    blocks = teacher_of("vgg8", IMAGES).blocks(search_spaces.cuts("vgg8"))
    students = search_spaces.students_of("vgg8", "separable", "tiny", IMAGES)
    with pytest.raises(npp.ConfigError, match="passes other than sandwich:1"):
        npp.distill_blockwise(
            blocks, students, images, steps=2, recipe={"passes": "sandwich:1"},
            run_dir=tmp_path / "run",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_a_student_that_cannot_take_its_input_is_one_line(tmp_path):
    blocks = teacher_of("vgg8", IMAGES).blocks(search_spaces.cuts("vgg8"))
    students = search_spaces.students_of("vgg8", "separable", "tiny", IMAGES)
    students[2] = torch.nn.Conv2d(5, 32, 3, padding=1)
    with pytest.raises(npp.ConfigError, match="student block 2 to take the output") as caught:
        npp.distill_blockwise(blocks, students, images, steps=2, run_dir=tmp_path / "run")
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()
