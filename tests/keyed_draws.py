"""Seeds of random draws and of parameters: the public rule, written out a second time."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def keyed_seed(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def start_draws(text):
    """Start every global generator; returns the key.

    ``torch.manual_seed`` would be as good, but takes as long as a small layer: for each kind of
    device that is not there it notes who called it.
    """
    key = keyed_seed(text)
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(key)
    np.random.seed(key % 2**32)
    random.seed(key)
    return key
