"""What pages call by names that their reader has: spaces, data, networks, losses."""

from __future__ import annotations

from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

import naspipe as npp
from naspipe.data import open_data
from tests.equivalence.test_own_optimizers import Lion


def small_images(seed: int, number: int) -> dict[str, torch.Tensor]:
    """Four images: input float32 (4, 3, 56, 56), target int64 (4,)."""
    draw = torch.Generator().manual_seed(1000 * seed + number)
    images = torch.randn(4, 3, 56, 56, generator=draw)
    return {"input": images, "target": torch.randint(10, (4,), generator=draw)}


def dense(*more: npp.Shared) -> npp.Space:
    """For digits; two choice blocks between shared layers."""
    choices = [lambda w=w: nn.Sequential(nn.Linear(64, w), nn.Linear(w, 64)) for w in (8, 16)]
    stem = npp.Shared("stem", lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 64)))
    head = npp.Shared("head", lambda: nn.Linear(64, 10))
    return npp.Space("mine", [stem, npp.Block(choices), npp.Block(choices), head, *more])


def network() -> list[nn.Module]:
    """A teacher for digits."""
    return [nn.Sequential(nn.Flatten(), nn.Linear(64, 32)), nn.ReLU(), nn.Linear(32, 10)]


def convolution(into: int, out: int, kernel: int = 3) -> nn.Module:
    """Keeps height and width."""
    return nn.Conv2d(into, out, kernel, padding=kernel // 2)


def pooling(layer: nn.Module) -> nn.Module:
    """A number for each of its channels."""
    return nn.Sequential(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def last_layer(into: int) -> nn.Module:
    """Classes of an image."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, 10))


def of_optimizers() -> dict[str, Any]:
    """A run's parts, and weights to begin with."""
    space, parts = dense(), network()
    before = npp.train(space, digits(), nn.CrossEntropyLoss(), steps=2, run_dir="runs/before")
    state = {
        f"{space.label(block, candidate)}.{name}": value
        for block, each in enumerate(space.blocks)
        for candidate, make in enumerate(each.candidates)
        for name, value in make().state_dict().items()
    }
    save_file(state, "weights.safetensors")
    return {
        "space": space, "batches": digits(), "loss": nn.CrossEntropyLoss(), "Lion": Lion,
        "parts": parts, "pretrained": parts, "pretrained_stem": before.shared("stem"),
    }  # fmt: skip


def of_teachers() -> dict[str, Any]:
    """A student and its teacher; the loop's outputs and lessons of two passes."""
    outputs = [torch.randn(4, 8, requires_grad=True) for _ in range(2)]
    return {
        "space": dense(npp.Shared("predictor", lambda: nn.Linear(10, 10))),
        "data": digits(), "network": network(),
        "images": digits(), "augment": noisy,
        "loss": npp.losses.Contrastive(), "outputs": outputs,
        "lessons": [torch.randn(4, 8) for _ in range(2)],
    }  # fmt: skip


def noisy(images: torch.Tensor, draw: torch.Generator, view: int) -> torch.Tensor:
    """A view of them."""
    return images + 0.1 * (view + 1) * torch.randn(images.shape, generator=draw)


def of_blockwise() -> dict[str, Any]:
    """Three blocks of a teacher, and students of them, for small images."""
    spaces = [
        npp.Space("first", [options(3, 12), options(12, 12)]),
        npp.Space("second", [options(12, 24, pooled=True)]),
    ]
    return {
        "stem": convolution(3, 12), "stage_1": pooling(convolution(12, 24)),
        "stage_2": nn.Linear(24, 10),
        "space_0": spaces[0], "space_1": spaces[1], "images": small_images,
        "held_out": small_images, "mb_conv": convolution,
        "train": small_images,
        "teachers": [convolution(3, 24), convolution(24, 32), last_layer(32)],
        "first": mixed("block-0", lambda: convolution(3, 24), torch.empty(1, 3, 56, 56)),
        "last": mixed("block-2", lambda: last_layer(32), torch.empty(1, 32, 56, 56)),
    }  # fmt: skip


def options(into: int, out: int, *, pooled: bool = False) -> npp.Block:
    """Three sizes."""
    end = pooling if pooled else nn.Sequential
    return npp.Block([lambda k=k: end(convolution(into, out, k)) for k in (1, 3, 5)])


def mixed(name: str, make: Any, example: torch.Tensor) -> npp.Space:
    """A student of one mixed edge with two candidates that are made alike."""
    layers = [[make, make]]
    table = npp.mixed.operations(layers, example)
    return npp.mixed.student(name, layers, operations=table, reference=1e6)


def digits(split: str = "train") -> Any:
    """Eight at a time."""
    return open_data("digits", batch_size=8, split=split)
