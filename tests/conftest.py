"""Shared settings of the suite."""

from __future__ import annotations

import gc
import os
import signal
from functools import partial

import pytest
import torch
from hypothesis import settings

from naspipe.api import planning as plan
from naspipe.config.execution import VerifySettings
from naspipe.profiling import profiles as profile_apart
from tests import stand_in
from tests.thinned import Thinned
from tests.tiers import Alone, Launches

settings.register_profile("naspipe", deadline=None, print_blob=True)
settings.load_profile("naspipe")

# Where the tests run in the background, Ctrl-C is ignored; some of them are about it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="every product of cases, and long tests")
    parser.addoption(
        "--backward", choices=("whole", "split"), help="of all equivalence tests, not every second"
    )


def pytest_configure(config):
    config.pluginmanager.register(Launches())
    config.pluginmanager.register(Thinned())
    if stand_in.is_wanted():
        config.pluginmanager.register(stand_in.Watcher())
    if "PYTEST_XDIST_WORKER" in os.environ:
        config.pluginmanager.register(Alone())


def pytest_collection():
    """What tests are made of stays: nobody looks for garbage in it, now or later."""
    gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture
def one_thread():
    """Torch computes as on a stage."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def computes_here(monkeypatch):
    """A single stage trains in this process, beside a stand-in too: for tests that look inside."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: None)


@pytest.fixture(autouse=True, scope="session")
def verified_if_asked():
    """A training in a test verifies itself only if the test gives a number of steps.

    Most tests compare a run with a plain loop of their own. Those that break a rule on purpose are
    about a fault that this comparison finds, and verification would find it before.
    """
    steps = VerifySettings.steps

    def asked(self, lag, count):
        return 0 if self.verify == "auto" else steps(self, lag, count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VerifySettings, "steps", asked)
        yield


@pytest.fixture(autouse=True, scope="session")
def own_profiles(tmp_path_factory):
    """Profiles of the tests are short, and kept apart from the user's."""
    root = tmp_path_factory.mktemp("profiles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "cached_profile", partial(plan.cached_profile, root=root))
        patch.setattr(profile_apart, "profile", partial(profile_apart.profile, budget_seconds=1.0))
        yield
