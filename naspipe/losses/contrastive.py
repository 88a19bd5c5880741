"""Contrast: every sample's query finds its own key among those of all samples of a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional


class Contrastive:
    """MoCo-v3's loss (Chen et al. 2021, section 3): InfoNCE over all samples of a step, both ways.

    For queries q of one view and keys k of the other, rows of unit length::

        2 * T * cross_entropy(q @ k.T / T, arange(len(q)))

    The sum over pairs of views. The negatives of a sample are the other samples of the step, from
    whatever pass: it is one loss over the outputs of all passes.

    Args:
        temperature: T.
        views: of each sample, as :class:`naspipe.Views` has them.
        local: more views, which have queries only.
    """

    fields = ()
    needs_teacher = True
    same_shapes = True

    def __init__(self, *, temperature: float = 0.2, views: int = 2, local: int = 0) -> None:
        self._temperature = temperature
        self._views = views
        self._local = local
        self.record = {"temperature": temperature, "views": views}
        """What of it is part of a run's definition."""
        if local:
            self.record |= {"local": local}

    def joined(
        self, outputs: Sequence[torch.Tensor], lessons: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """The loss of the queries and keys of all passes, in their order.

        Args:
            outputs: of the student, of shape (batch, features) each.
            lessons: of the teacher, as many but for those of local views.
        """
        queries = _by_view(outputs, self._views + self._local)
        keys = _by_view(lessons, self._views)
        t, losses = self._temperature, []
        for number, query in enumerate(queries):
            for other, key in enumerate(keys):
                if other != number or self._views == 1:
                    labels = torch.arange(len(query), device=query.device)
                    logits = query @ key.T / t
                    losses.append(2.0 * t * functional.cross_entropy(logits, labels))
        return torch.stack(losses).sum()


def _by_view(passes: Sequence[torch.Tensor], views: int) -> list[torch.Tensor]:
    count = len(passes) // views
    found = [torch.cat(list(passes[view * count : (view + 1) * count])) for view in range(views)]
    return [functional.normalize(view, dim=-1) for view in found]
