"""Several views of each sample: data whose passes contain a batch under different transformations.

The transformations of small images are those of SimCLR (Chen et al. 2020, appendix A) that apply to
grey images, with the asymmetry of BYOL (Grill et al. 2020, appendix B): the first view is always
blurred; the others are rarely blurred, but may be partly erased.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from naspipe.config.errors import ConfigError
from naspipe.config.text import knows_keywords
from naspipe.config.user_code import full_name

Batches = Callable[[int, int], Mapping[str, torch.Tensor]]

Transform = Callable[[torch.Tensor, torch.Generator, int], torch.Tensor]
"""(samples, generator of random draws, number of the view) -> input of the network."""


SMALLEST = 0.3
"""Minimum fraction of an image's area that a crop contains."""

BLURRED, ERASED = (1.0, 0.1), (0.0, 0.2)
"""Probabilities for the first view and for the others."""

_KERNEL = torch.tensor([0.25, 0.5, 0.25])


@knows_keywords
class Views:
    """Data whose steps contain every sample several times, transformed differently each time.

    A step has ``views * batches`` passes: first every micro-batch as the first view, then all of
    them as the second, and so on. The draws of a transformation are keyed by the run's seed, the
    micro-batch and the view.

    Example::

        data = npp.Views(images, augment, views=2, batches=4)
        npp.train(space, data, npp.losses.BYOL(), recipe={"passes": "accumulate:8"}, ...)

    With ``local=L`` each sample has L more views, which a teacher does not process, such as small
    crops (DINO, Caron et al. 2021, section 3.1). They follow the others, and may have another size
    if the network accepts any size.

    Args:
        data: (seed, number) -> named tensors; the field ``input`` is transformed.
        transform: see :data:`Transform`.
        views: number of views of each sample that both student and teacher process.
        batches: micro-batches of a step.
        local: number of views of each sample that only the student processes.
        local_transform: creates the local views, whose numbers follow the others'; by default
            ``transform``.
    """

    def __init__(
        self,
        data: Batches,
        transform: Transform,
        *,
        views: int = 2,
        batches: int = 1,
        local: int = 0,
        local_transform: Transform | None = None,
    ) -> None:
        if views < 1 or batches < 1 or local < 0:
            raise ConfigError(
                f"views: expected one view and one batch or more, found {views} and {batches}"
                + (f", and {local} local ones" if local else "")
            )
        self.plain = data
        self._transforms = (transform, local_transform or transform)
        self.views = views
        self.batches = batches
        self.local = local
        self.validation = getattr(data, "validation", None)
        self.info = getattr(data, "info", {})
        whole, small = (
            getattr(each, "record", None) or full_name(each) for each in self._transforms
        )
        self.record = dict(getattr(data, "record", None) or {"name": full_name(data)})
        self.record |= {"views": views, "batches": batches, "transform": whole}
        if local:
            self.record |= {"local": local, "local_transform": small}

    @property
    def passes(self) -> int:
        """Number of passes of a step."""
        return (self.views + self.local) * self.batches

    @property
    def lessons(self) -> int:
        """Number of first passes of a step, which a teacher processes."""
        return self.views * self.batches

    def __call__(self, seed: int, number: int) -> Mapping[str, torch.Tensor]:
        step, place = divmod(number, self.passes)
        view, micro = divmod(place, self.batches)
        sample = step * self.batches + micro
        batch = self.plain(seed, sample)
        text = f"{seed}/view/{sample}/{view}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        draws = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
        transform = self._transforms[view >= self.views]
        return {**batch, "input": transform(batch["input"], draws, view)}


class Augment:
    """Crop and resize, flip, blur, erase: each image with separate draws."""

    record: Mapping[str, Any] = {
        "name": "crop-flip-blur-erase",
        "smallest": SMALLEST,
        "blurred": BLURRED,
        "erased": ERASED,
    }
    """Its part of a run's definition."""

    def __call__(self, images: torch.Tensor, draws: torch.Generator, view: int) -> torch.Tensor:
        """Return images of the same shape, (batch, channels, height, width)."""
        later = int(view > 0)
        images = _crop(images, draws)
        chosen = torch.rand(len(images), generator=draws) < BLURRED[later]
        images = torch.where(chosen[:, None, None, None], _blur(images), images)
        chosen = torch.rand(len(images), generator=draws) < ERASED[later]
        corners = torch.rand(len(images), 2, generator=draws)
        return torch.where(chosen[:, None, None, None], _erase(images, corners), images)


def _crop(images: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
    """Crop a part of each image and resize it to the whole size; half of them are mirrored."""
    count = len(images)
    side = (SMALLEST + (1 - SMALLEST) * torch.rand(count, generator=draws)).sqrt()
    shift = (1 - side)[:, None] * (2 * torch.rand(count, 2, generator=draws) - 1)
    mirror = 1.0 - 2.0 * (torch.rand(count, generator=draws) < 0.5).float()
    matrix = torch.zeros(count, 2, 3)
    matrix[:, 0, 0], matrix[:, 1, 1] = side * mirror, side
    matrix[:, :, 2] = shift
    grid = functional.affine_grid(matrix, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _blur(images: torch.Tensor) -> torch.Tensor:
    """Blur with a binomial kernel of 3 x 3."""
    channels = images.shape[1]
    padded = functional.pad(images, (1, 1, 1, 1), mode="replicate")
    kernel = (_KERNEL[:, None] * _KERNEL).expand(channels, 1, 3, 3)
    return functional.conv2d(padded, kernel, groups=channels)


def _erase(images: torch.Tensor, corners: torch.Tensor) -> torch.Tensor:
    """Set a rectangle with a quarter of each side to zero, at the given corners."""
    height, width = images.shape[-2:]
    rows, columns = torch.arange(height)[None, :, None], torch.arange(width)[None, None, :]
    tall, wide = max(1, height // 4), max(1, width // 4)
    top = (corners[:, 0] * (height - tall + 1)).long()[:, None, None]
    left = (corners[:, 1] * (width - wide + 1)).long()[:, None, None]
    inside = (rows >= top) & (rows < top + tall) & (columns >= left) & (columns < left + wide)
    return images.masked_fill(inside[:, None], 0.0)
