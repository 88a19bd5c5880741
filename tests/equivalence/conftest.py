"""Runs of these tests split every backward that can be split."""

from __future__ import annotations

import pytest

from naspipe.core.settings.pipeline_groups import PipelineSettings


@pytest.fixture(autouse=True, scope="package")
def splits_backwards():
    """Where a test does not say otherwise; with `auto`, most of its blocks are too small for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PipelineSettings.__init__.__kwdefaults__, "backward", "split")
        yield
