"""NAS-Bench-201's cell through NNI, on Fashion-MNIST: a space, its data and its loss.

What all subnets share is the stem, the two blocks that halve the image, and the end. All but the
end may be read late; they have batch normalisation, so runs want ``norms=deferred``.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from nni.nas.hub.pytorch import NasBench201

    import naspipe as npp
    from naspipe.data.registry import open_data

LATE = ("stem", "cells_2", "cells_5")
BATCH_SIZE = 32


@cache
def images() -> Any:
    """Fashion-MNIST, prepared before."""
    return open_data("fashion-mnist", batch_size=BATCH_SIZE, split="train")


def data(seed: int, step: int) -> dict[str, torch.Tensor]:
    """Grey images in three equal channels, as the stem wants them."""
    batch = images()(seed, step)
    return {**batch, "input": batch["input"].expand(-1, 3, -1, -1).contiguous()}


torch.manual_seed(7)
space = npp.from_nni(NasBench201(stem_out_channels=4, num_modules_per_stack=2)).with_rules(
    dict.fromkeys(LATE, npp.Lag(4))
)
loss = torch.nn.CrossEntropyLoss()
