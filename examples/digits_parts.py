"""What the examples share: real images of digits as a torch ``Dataset``, and a small space."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset

import naspipe as npp


class Digits(Dataset):
    """1,797 grey images of 8 x 8 pixels, from scikit-learn: float32 (1, 8, 8) and a class.

    Args:
        held_out: the last 297 of them instead of the first 1,500.
        shifts: move each image by up to one pixel, drawn from torch's global generator.
    """

    def __init__(self, *, held_out: bool = False, shifts: bool = True) -> None:
        pixels, targets = load_digits(return_X_y=True)
        part = slice(1500, None) if held_out else slice(0, 1500)
        self.images = torch.tensor(pixels[part], dtype=torch.float32).view(-1, 1, 8, 8) / 16
        self.targets = torch.tensor(targets[part])
        self.shifts = shifts and not held_out

    def __len__(self) -> int:
        """How many there are."""
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """An image and its class."""
        image = self.images[row]
        if self.shifts:
            down, right = torch.randint(-1, 2, (2,)).tolist()
            image = image.roll((down, right), (1, 2))
        return image, self.targets[row]


class Residual(nn.Module):
    """A convolution beside a shortcut."""

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.body = nn.Conv2d(16, 16, kernel, padding=kernel // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        return x + self.body(torch.relu(x))


def space(head: type[nn.Module] | None = None) -> npp.Space:
    """Four choice blocks between a stem and a head for ten classes, or one of your own."""
    return npp.Space(
        "digits-example",
        [
            npp.Shared("stem", lambda: nn.Conv2d(1, 16, 3, stride=2, padding=1), rule=npp.Lag(2)),
            *(
                npp.Block([lambda: Residual(1), lambda: Residual(3), nn.Identity], kind="residual")
                for _ in range(4)
            ),
            npp.Shared("head", head or (lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 10)))),
        ],
    )


def accuracy(output: torch.Tensor, target: torch.Tensor, *fields: torch.Tensor) -> torch.Tensor:
    """The share of a batch whose class comes first."""
    return (output.argmax(1) == target).float().mean()
