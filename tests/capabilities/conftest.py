"""What a test registers is gone after it."""

from __future__ import annotations

import pytest

from tests.registries import kept_registries


@pytest.fixture(autouse=True)
def registries():
    with kept_registries():
        yield
