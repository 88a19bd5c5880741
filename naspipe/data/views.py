"""Several views of each sample: data whose passes see one batch after another transformation.

The transformations of small images are those of SimCLR (Chen et al. 2020, appendix A) as far as
grey images have them, with the asymmetry of BYOL (Grill et al. 2020, appendix B): the first view is
always blurred, the others seldom, and erased in one place instead.
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
"""(samples, where its draws come from, number of the view) -> what the network is given."""


SMALLEST = 0.3
"""Of an image's area, what a crop shows at least."""

BLURRED, ERASED = (1.0, 0.1), (0.0, 0.2)
"""Probabilities, of the first view and of the others."""

_KERNEL = torch.tensor([0.25, 0.5, 0.25])


@knows_keywords
class Views:
    """Data whose steps show every sample several times, each time transformed anew.

    For steps of ``views * batches`` passes: first every micro-batch as the first view, then all of
    them as the second, and so on. The draws of a transformation are keyed by the run's seed, the
    micro-batch and the view.

    Example::

        data = npp.Views(images, augment, views=2, batches=4)
        npp.train(space, data, npp.losses.BYOL(), recipe={"passes": "accumulate:8"}, ...)

    With ``local=L`` each sample has L views more that a teacher does not see, such as small crops
    (DINO, Caron et al. 2021, section 3.1). They come behind the others, and may have another size,
    where the network takes any.

    Args:
        data: (seed, number) -> named tensors; the field ``input`` is transformed.
        transform: see :data:`Transform`.
        views: of each sample, which a teacher sees, too.
        batches: micro-batches of a step.
        local: views of each sample that the student alone sees.
        local_transform: makes those, whose numbers go on behind the others'; ``transform`` where
            it is left out.

    Raises:
        ConfigError: for fewer than one view or batch.
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
        """What is transformed."""
        self._transforms = (transform, local_transform or transform)
        self.views = views
        self.batches = batches
        self.local = local
        self.validation = getattr(data, "validation", None)
        self.info = getattr(data, "info", {})
        inner = dict(getattr(data, "record", None) or {"name": full_name(data)})
        says = getattr(transform, "record", None)
        self.record = {
            **inner, "views": views, "batches": batches, "transform": says or full_name(transform)
        }  # fmt: skip
        if local:
            smaller = self._transforms[1]
            says = getattr(smaller, "record", None)
            self.record |= {"local": local, "local_transform": says or full_name(smaller)}

    @property
    def passes(self) -> int:
        """Of a step."""
        return (self.views + self.local) * self.batches

    @property
    def lessons(self) -> int:
        """The first passes of a step, which a teacher sees."""
        return self.views * self.batches

    def __call__(self, seed: int, number: int) -> Mapping[str, torch.Tensor]:
        """The batch of a pass."""
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
    """Crop and resize, flip, blur, erase: each image by draws of its own."""

    record: Mapping[str, Any] = {
        "name": "crop-flip-blur-erase", "smallest": SMALLEST, "blurred": BLURRED, "erased": ERASED,
    }  # fmt: skip
    """What of it is part of a run's definition."""

    def __call__(self, images: torch.Tensor, draws: torch.Generator, view: int) -> torch.Tensor:
        """Images of the same shape, (batch, channels, height, width)."""
        later = int(view > 0)
        images = _crop(images, draws)
        images = _where(torch.rand(len(images), generator=draws) < BLURRED[later], _blur, images)
        chosen = torch.rand(len(images), generator=draws) < ERASED[later]
        corners = torch.rand(len(images), 2, generator=draws)
        return torch.where(chosen[:, None, None, None], _erase(images, corners), images)


def _crop(images: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
    """A part of each image, as large as the whole; half of them mirrored."""
    count = len(images)
    side = (SMALLEST + (1 - SMALLEST) * torch.rand(count, generator=draws)).sqrt()
    shift = (1 - side)[:, None] * (2 * torch.rand(count, 2, generator=draws) - 1)
    mirror = 1.0 - 2.0 * (torch.rand(count, generator=draws) < 0.5).float()
    matrix = torch.zeros(count, 2, 3)
    matrix[:, 0, 0], matrix[:, 1, 1] = side * mirror, side
    matrix[:, :, 2] = shift
    grid = functional.affine_grid(matrix, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _where(chosen: torch.Tensor, change: Any, images: torch.Tensor) -> torch.Tensor:
    return torch.where(chosen[:, None, None, None], change(images), images)


def _blur(images: torch.Tensor) -> torch.Tensor:
    """With a binomial kernel of 3 x 3."""
    channels = images.shape[1]
    padded = functional.pad(images, (1, 1, 1, 1), mode="replicate")
    kernel = (_KERNEL[:, None] * _KERNEL).expand(channels, 1, 3, 3)
    return functional.conv2d(padded, kernel, groups=channels)


def _erase(images: torch.Tensor, corners: torch.Tensor) -> torch.Tensor:
    """Nothing in a square of a quarter of each side, somewhere."""
    height, width = images.shape[-2:]
    rows, columns = torch.arange(height)[None, :, None], torch.arange(width)[None, None, :]
    tall, wide = max(1, height // 4), max(1, width // 4)
    top = (corners[:, 0] * (height - tall + 1)).long()[:, None, None]
    left = (corners[:, 1] * (width - wide + 1)).long()[:, None, None]
    inside = (rows >= top) & (rows < top + tall) & (columns >= left) & (columns < left + wide)
    return images.masked_fill(inside[:, None], 0.0)
