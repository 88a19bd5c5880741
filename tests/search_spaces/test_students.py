"""Named students: every path of a block puts out what the teacher's block does, in its shapes."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import search_spaces
from naspipe.config.blocks import Shared
from naspipe.config.errors import ConfigError
from naspipe.config.recipe_file import recipe_names
from tests.search_spaces.chain import IMAGES, TEXT

DIGITS = {"channels": 1, "height": 8, "width": 8, "classes": 10}
PAIRS = [
    (teacher, student, info)
    for student in search_spaces.student_names()
    for teacher in search_spaces.student_kind(student).teachers
    for info in ((TEXT,) if "bert" in teacher else (IMAGES, DIGITS))
]


def inputs(info):
    if info is TEXT:
        return (torch.randint(2, 50, (2, 7)),)
    return (torch.randn(2, 1, info["height"], info["width"]),)


def through(modules, state):
    for module in modules:
        found = module.eval()(*state)
        state = found if isinstance(found, tuple) else (found,)
    return state


@pytest.mark.parametrize(("teacher", "student", "info"), PAIRS)
def test_every_path_has_the_shapes_of_the_teacher(teacher, student, info):
    """Each candidate of a block of a chain has the shapes of the first one: so has every path."""
    whole = search_spaces.build(teacher, "tiny", info)
    layers = [block.candidates[0]() for block in whole.blocks]
    ends = [0, *search_spaces.cuts(teacher), len(layers)]
    spaces = search_spaces.students_of(teacher, student, "tiny", info)
    assert len(spaces) == len(ends) - 1
    state = inputs(info)
    for (begin, end), space in zip(pairwise(ends), spaces, strict=True):
        taught, found = through(layers[begin:end], state), state
        for block in space.blocks:
            outputs = [through([make()], found) for make in block.candidates]
            assert len({tuple(each.shape for each in out) for out in outputs}) == 1
            found = outputs[0]
        assert [(e.shape, e.dtype) for e in found] == [(e.shape, e.dtype) for e in taught]
        state = taught


@pytest.mark.parametrize(
    ("scale", "layers"), [("tiny", (2, 3, 3, 3, 3, 1)), ("paper", (2, 4, 4, 4, 4, 1))]
)
def test_proxyless_has_its_candidates(scale, layers):
    spaces = search_spaces.students_of("mobilenet-v2", "proxyless", scale, IMAGES)
    assert [space.candidate_counts for space in spaces] == [
        (6, *[7] * (count - 1)) for count in layers
    ]
    shared = [b.name for space in spaces for b in space.blocks if isinstance(b, Shared)]
    assert shared == ["stem", "first", "mix", "classifier"]


def test_a_separable_network_is_smaller_than_its_teacher():
    def size(blocks):
        return sum(p.numel() for b in blocks for p in b.candidates[0]().parameters())

    for teacher in ("vgg8", "vgg16"):
        spaces = search_spaces.students_of(teacher, "separable", "tiny", IMAGES)
        whole = search_spaces.build(teacher, "tiny", IMAGES)
        assert 4 * sum(size(space.blocks) for space in spaces) < size(whole.blocks)


def test_what_cannot_be_taught():
    with pytest.raises(ConfigError, match="expected a teacher of mobilenet-v2, found vgg8"):
        search_spaces.students_of("vgg8", "proxyless", "tiny", IMAGES)
    with pytest.raises(ConfigError, match=r"unknown student 'proxiless': expected one of proxyl"):
        search_spaces.students_of("vgg8", "proxiless", "tiny", IMAGES)
    with pytest.raises(ConfigError, match="height is missing"):
        search_spaces.students_of("vgg8", "separable", "tiny", {"channels": 1})
    with pytest.raises(ConfigError, match=r"unknown network 'cv\.c3'"):
        search_spaces.cuts("cv.c3")
    assert search_spaces.cuts("resnet50") == ()


def test_each_has_a_recipe_that_is_there():
    for name in search_spaces.student_names():
        assert search_spaces.student_kind(name).recipe in recipe_names()
