"""Image candidates: their operations do what they say, and sizes stay as they are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import search_spaces
from search_spaces.cv.layers import MaxPool
from tests.search_spaces import chain

NAMES = search_spaces.candidate_names("cv.c1")


def test_max_pool_is_the_library_s() -> None:
    torch.manual_seed(0)
    for shape in ((2, 3, 7, 5), (1, 1, 1, 4), (1, 2, 2, 2)):
        x = torch.randn(shape, requires_grad=True)
        again = x.detach().clone().requires_grad_()
        ours, theirs = MaxPool()(x), F.max_pool2d(again, 3, 1, 1)
        assert torch.equal(ours, theirs)
        grad = torch.randn(shape)
        ours.backward(grad)
        theirs.backward(grad)
        torch.testing.assert_close(x.grad, again.grad)


def test_max_pool_gives_each_gradient_to_one_pixel_where_several_are_greatest() -> None:
    x = torch.randn(2, 3, 6, 6).relu().requires_grad_()
    MaxPool()(x).backward(torch.ones(2, 3, 6, 6))
    assert x.grad is not None
    assert x.grad.sum() == 2 * 3 * 36
    assert torch.equal(x.grad, x.grad.round())


@pytest.mark.parametrize("number", range(48), ids=NAMES)
def test_every_candidate_keeps_the_shape_and_has_a_norm(number: int) -> None:
    torch.manual_seed(number)
    module = chain.tiny("cv.c1").blocks[1].candidates[number]()
    x = torch.randn(3, 24, 14, 14, requires_grad=True)
    out = module(x)
    assert out.shape == x.shape
    assert sum(isinstance(part, torch.nn.BatchNorm2d) for part in module.modules()) == 1
    out.square().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_signal_keeps_its_size_through_all_blocks() -> None:
    torch.manual_seed(0)
    space = chain.tiny("cv.c1")
    x = chain.image_batch(8)["input"]
    sizes = []
    for module in chain.make(space, chain.random_choices(space, 1))[:-1]:
        x = module(x)
        sizes.append(x.std().item())
    assert min(sizes) > 0.5 and max(sizes) < 4


def test_paper_scale_shapes() -> None:
    info = {"channels": 3, "height": 112, "width": 112, "classes": 1000}
    space = search_spaces.build("cv.c1", "paper", info)
    with torch.device("meta"):
        modules = chain.make(space, chain.random_choices(space, 1))
        maps = modules[0](torch.zeros(64, 3, 112, 112))
        assert maps.shape == (64, 1216, 7, 7)
        scores = chain.forward(space, modules, {"input": torch.zeros(64, 3, 112, 112)})
    assert scores.shape == (64, 1000)
