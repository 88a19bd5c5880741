"""Where images come from, and who hears of a preparation.

Implementations: :class:`ImageSource` is :class:`naspipe.data.images.ArraySource`
or :class:`naspipe.data.image_folder.FolderSource`; :class:`PreparationProgress` is
:class:`naspipe.data.progress.SilentProgress` or :class:`naspipe.data.progress.ConsoleProgress`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


class ImageSource(Protocol):
    """The images of one split; `ImageData` batches them."""

    @property
    def targets(self) -> IntArray:
        """The class of each image."""

    def images(self, rows: Sequence[int], seed: int, sequence_id: int) -> FloatArray:
        """Return images ``rows`` as normalised (B, C, H, W), a pure function of the arguments."""


class PreparationProgress(Protocol):
    """Hears of the phases of a preparation, in order; only one phase is open at a time."""

    def phase(self, text: str, total: int | None = None) -> None:
        """End the open phase and begin another of ``total`` steps (None: number unknown)."""

    def advance(self, steps: int = 1) -> None:
        """Count ``steps`` more of the open phase."""
