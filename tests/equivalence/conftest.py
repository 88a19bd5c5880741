"""Runs of some of these tests split every backward that can be split."""

from __future__ import annotations

import pytest

from naspipe.core.settings.pipeline_groups import PipelineSettings

SPLIT = ("test_edited_parameters", "test_passes", "test_rules")
"""Modules whose runs do so, where a test does not say otherwise."""


@pytest.fixture(autouse=True, scope="module")
def splits_backwards(request):
    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__.rpartition(".")[2] in SPLIT:
            patch.setitem(PipelineSettings.__init__.__kwdefaults__, "backward", "split")
        yield
