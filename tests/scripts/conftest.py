"""What a script registers is gone after the module that tests it."""

from __future__ import annotations

import pytest

from tests.registries import kept_registries


@pytest.fixture(scope="module", autouse=True)
def registries():
    with kept_registries():
        yield
