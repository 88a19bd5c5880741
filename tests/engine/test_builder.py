"""Names that become policies and orders."""

from __future__ import annotations

import pytest

from naspipe.config.errors import ConfigError
from naspipe.config.rules import Exact
from naspipe.engine.builder import ORDERS, POLICIES, build_controller
from naspipe.engine.controller import StageController


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("order", ORDERS)
def test_every_registered_name_builds(policy: str, order: str) -> None:
    controller = build_controller(0, [[Exact()]], policy=policy, order=order)
    assert isinstance(controller, StageController) and controller.unfinished == []


@pytest.mark.parametrize(("what", "known"), [("policy", POLICIES), ("order", ORDERS)])
@pytest.mark.parametrize("name", ["", "CSP", "nope"])
def test_unknown_names(what: str, known: dict[str, object], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_controller(0, [[Exact()]], **{what: name})
    assert str(caught.value) == f"unknown {what} {name!r}: expected {' or '.join(known)}"
