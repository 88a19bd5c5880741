"""Several views of each sample: data whose passes see one batch after another transformation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import torch

from naspipe.core.errors import ConfigError
from naspipe.runtime.jobs.workload import Batches, Workload

Transform = Callable[[torch.Tensor, torch.Generator, int], torch.Tensor]
"""(samples, where its draws come from, number of the view) -> what the network is given."""


class Views:
    """Data whose steps show every sample several times, each time transformed anew.

    For steps of ``views * batches`` passes: first every micro-batch as the first view, then all of
    them as the second, and so on. The draws of a transformation are keyed by the run's seed, the
    micro-batch and the view.

    Example::

        data = npp.Views(images, augment, views=2, batches=4)
        npp.train(space, data, npp.losses.BYOL(), recipe={"passes": "accumulate:8"}, ...)

    Args:
        data: (seed, number) -> named tensors; the field ``input`` is transformed.
        transform: see :data:`Transform`.
        views: of each sample.
        batches: micro-batches of a step.

    Raises:
        ConfigError: for numbers below 1.
    """

    def __init__(
        self, data: Batches, transform: Transform, *, views: int = 2, batches: int = 1
    ) -> None:
        if views < 1 or batches < 1:
            raise ConfigError(
                f"views: expected one view and one batch or more, found {views} and {batches}"
            )
        self._data = data
        self._transform = transform
        self.views = views
        self.batches = batches
        self.validation = getattr(data, "validation", None)
        inner = dict(getattr(data, "record", None) or {"name": _name(data)})
        self.record = {**inner, "views": views, "batches": batches, "transform": _name(transform)}

    def __call__(self, seed: int, number: int) -> Mapping[str, torch.Tensor]:
        """The batch of a pass."""
        step, place = divmod(number, self.views * self.batches)
        view, micro = divmod(place, self.batches)
        sample = step * self.batches + micro
        batch = self._data(seed, sample)
        text = f"{seed}/view/{sample}/{view}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        draws = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
        return {**batch, "input": self._transform(batch["input"], draws, view)}


def views_of(workload: Workload) -> int:
    """How many views of each sample a step of a workload sees.

    Raises:
        ConfigError: when its steps have other passes than the data have views of batches.
    """
    data, passes = workload.data, workload.recipe.steps.passes
    if not isinstance(data, Views):
        return 1
    if data.views * data.batches != passes:
        raise ConfigError(
            f"views: expected passes=accumulate:{data.views * data.batches}, for {data.views} "
            f"views of {data.batches} micro-batches, found {workload.recipe.passes}"
        )
    return data.views


def crossed(views: int, passes: int) -> tuple[tuple[int, int], ...] | None:
    """Pairs of passes, a teacher's and a student's: each view learns from the next one."""
    if views == 1:
        return None
    batches = passes // views
    return tuple(((number + batches) % passes, number) for number in range(passes))


def _name(thing: object) -> str:
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"
