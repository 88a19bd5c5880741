"""What a teacher's encoder makes of each word that is not padding."""

from __future__ import annotations

import torch


class HiddenStates:
    """The mean square of the difference to the teacher's hidden states.

    Both networks return hidden states of shape (batch, positions, features) and a mask of shape
    (batch, positions) that is True at padding; padding does not count.
    """

    fields = ()
    needs_teacher = True

    def __call__(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Without a teacher: where what a layer costs is measured."""
        return self.distill(hidden, mask, hidden.detach(), mask)

    def distill(
        self,
        hidden: torch.Tensor,
        mask: torch.Tensor,
        taught: torch.Tensor,
        taught_mask: torch.Tensor,
    ) -> torch.Tensor:
        """With the teacher's hidden states for the same words; both have one mask."""
        is_word = (~mask).to(hidden.dtype)
        square = (hidden - taught).square().mean(-1)
        return (square * is_word).sum() / is_word.sum()
