"""The example of docs/spaces.md runs as it stands, and the messages that it shows are real."""

from __future__ import annotations

import re

import torch
from torch import nn

import naspipe as npp
from naspipe.checks.sketched import SketchedLayers
from naspipe.checks.space import alike_note
from naspipe.config.ids import FIRST_STREAM, LayerId
from tests.test_architecture import ROOT, product

PAGE = (ROOT / "docs" / "spaces.md").read_text("utf-8")


def test_the_example() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "docs/spaces.md", "exec"), names)
    space = names["space"]
    assert isinstance(space, npp.Space)
    x = torch.ones(2, 1, 8, 8)
    for block, label in enumerate(space.labels):
        layer: nn.Module = space.blocks[block].candidates[0]()
        x = layer(x)
        assert space.layer(label if label in ("stem", "head") else f"{label}.0") == LayerId(
            FIRST_STREAM, block, 0
        )
    assert x.shape == (2, 10)
    assert alike_note(space, SketchedLayers(space)) is None


def test_the_messages() -> None:
    """In the code are the words of those on the page, numbers and names left out."""
    source = " ".join(
        re.sub(r'"\s+f?"', "", (ROOT / path).read_text("utf-8"))
        for path in product()
        if path.startswith(("naspipe/checks/", "naspipe/worker/", "naspipe/profiling/"))
        or path in ("naspipe/config/user_code.py", "naspipe/api/planning.py")
    )
    for words in (
        "; expected one shape, as ", "takes only the second, found", "this run gains little from ",
        "every step reads layer ", "are alike", "to be a factory, found ", " share one ",
        ", called with ", "the profile of layer ", "norms=deferred, or ",
        "with GroupNorm in the place of its ",
    ):  # fmt: skip
        assert words in " ".join(PAGE.split()), words
        assert words in source, words
