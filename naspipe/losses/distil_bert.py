"""Three terms: what the teacher predicts, what was masked, and the direction of hidden states."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class DistilBert:
    """The loss of DistilBERT (Sanh et al. 2019, section 3)::

        soft * T² * KL(softmax(taught / T) || softmax(output / T)) + label * cross_entropy
            + cosine * (1 - cosine(hidden, taught hidden))

    The last blocks of both networks return a tuple (scores, hidden states) of shapes
    (batch, positions, words) and (batch, positions, features). Positions whose target is
    ``ignore_index`` count in the first and the last term only.

    Args:
        temperature: T.
        soft: weight of the first term.
        label: of the second.
        cosine: of the third.
        ignore_index: of targets that were not masked.
    """

    same_shapes = True
    wants_hidden = True
    """What goes into the teacher's last block is taught, too."""

    def __init__(
        self,
        *,
        temperature: float = 2.0,
        soft: float = 5.0,
        label: float = 2.0,
        cosine: float = 1.0,
        ignore_index: int = -100,
    ) -> None:
        self._temperature = temperature
        self._weights = soft, label, cosine
        self.ignore_index = ignore_index
        self.record = {
            "temperature": temperature, "soft": soft, "label": label, "cosine": cosine,
        }  # fmt: skip
        """What of it is part of a run's definition."""
        self._label = nn.CrossEntropyLoss(ignore_index=ignore_index)

    def __call__(
        self, scores: torch.Tensor, hidden: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        """Without a teacher: where the student is validated."""
        loss: torch.Tensor = self._label(scores.flatten(0, -2), target.flatten())
        return loss

    def distill(
        self,
        scores: torch.Tensor,
        hidden: torch.Tensor,
        taught_scores: torch.Tensor,
        taught_hidden: torch.Tensor,
        target: torch.Tensor,
    ) -> torch.Tensor:
        """With the teacher's scores and hidden states for the same batch."""
        t, (soft, label, cosine) = self._temperature, self._weights
        own, other = (
            functional.log_softmax(each.flatten(0, -2) / t, 1) for each in (scores, taught_scores)
        )
        divergence = functional.kl_div(own, other, reduction="batchmean", log_target=True)
        angle = functional.cosine_similarity(hidden, taught_hidden, dim=-1)
        return (
            soft * t * t * divergence
            + label * self(scores, hidden, target)
            + cosine * (1.0 - angle).mean()
        )
