"""Data sets that draw at random, as people write them."""

from __future__ import annotations

import os
import random
import signal
import time

import numpy as np
import torch
from torch.utils.data import Dataset


class Drawn(Dataset):
    """Items that draw from all three global generators, as augmentations do."""

    def __init__(self, size=29):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, row):
        noise = torch.rand(3) + random.random() + np.random.rand()
        return noise + row, row % 5


class Names(Drawn):
    """Items by name, one of them no tensor."""

    def __getitem__(self, row):
        pixels, target = super().__getitem__(row)
        return {"input": pixels, "target": target, "file": f"{row}.png", "empty": torch.ones(0)}


class Trouble(Drawn):
    """What goes wrong in a process that makes batches: at one item."""

    def __init__(self, how, at):
        super().__init__()
        self.how, self.at, self.here = how, at, os.getpid()

    def __getitem__(self, row):
        if row == self.at and os.getpid() != self.here:
            if self.how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "hangs":
                time.sleep(100)
            raise ValueError("no such file")
        return super().__getitem__(row)
