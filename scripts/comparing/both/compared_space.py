"""A model space of NNI's with its data, as either version of the code loads it.

Which naspipe is imported is for the search path to say; the space is always that of the tests
beside this file, so that both versions train the same one.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import naspipe

_SPACES = Path(__file__).parents[3] / "tests/nni/spaces.py"
_spec = importlib.util.spec_from_file_location("compared_spaces", _SPACES)
if _spec is None or _spec.loader is None:
    raise ImportError(f"{_SPACES}: expected a module with NNI's spaces")
_spaces = importlib.util.module_from_spec(_spec)
sys.modules["compared_spaces"] = _spaces
_spec.loader.exec_module(_spaces)

batches = _spaces.batches
own = naspipe.from_nni(_spaces.make("own"))


def held(seed, number):
    """Held-out batches: those of another seed."""
    return batches(seed + 77, number)
