"""NNI is installed with the tests' other packages; where it is not, that is said."""

from __future__ import annotations

import importlib
import importlib.util
import warnings

import pytest

collect_ignore = []
if importlib.util.find_spec("nni"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NNI's own, about newer versions of torch and pandas
        importlib.import_module("nni.nas.hub.pytorch")
else:
    collect_ignore = [
        "test_distillation.py",
        "test_exact.py",
        "test_experiment.py",
        "test_held_strategies.py",
        "test_hub.py",
        "test_instances.py",
        "test_loose_ends.py",
        "test_own.py",
        "test_proof.py",
        "test_readme.py",
        "test_scripts.py",
        "test_search.py",
        "test_strategies.py",
        "test_training.py",
    ]


@pytest.fixture(autouse=True)
def as_on_a_stage(one_thread):
    """NNI's modules compute here by one thread."""
