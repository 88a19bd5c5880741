"""Agreement of two views of a sample: the student's prediction and the teacher's projection."""

from __future__ import annotations

import torch
from torch.nn import functional


class BYOL:
    """Bootstrap your own latent (Grill et al. 2020, equation 2): of vectors p and z ::

        mean(2 - 2 * cosine(p, z))

    Both ways are trained where each view learns from the other one: with :class:`naspipe.Views`.
    There is no label.
    """

    fields = ()
    same_shapes = True
    """The teacher's output has the shape of the student's."""

    def distill(self, output: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
        """The loss of predictions and of the teacher's projections, of shape (batch, features)."""
        return (2.0 - 2.0 * functional.cosine_similarity(output, taught, dim=-1)).mean()
