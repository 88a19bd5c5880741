"""What is trained on a device and then compared with a plain loop there, case by case.

A case has ``train(device, place)``, which leaves its runs below ``place``, and
``compare(made, device)``, which raises AssertionError where a bit differs. Stages are forked from
this process, so it never starts CUDA itself: each comparison is made in a process of its own.
"""

from __future__ import annotations

import os
import time
import traceback
from functools import partial

import torch

import naspipe as npp
from naspipe.api import planning as run_plan
from naspipe.machine.forking import done_apart
from naspipe.profiling import profiles as profile_apart
from tests.equivalence.harness import plain_torch

IDENTICAL = "IDENTICAL"


def plain_device(device):
    """The GPU of the plain loop, where several stages share one, too."""
    return "cuda:0" if device == "cuda" else device


def judge(chosen, device, place, report):
    """Train and compare one case after the other: ``report(name, verdict, seconds)`` for each."""
    short_profiles(place / "profiles")
    for number, (name, case) in enumerate(chosen.items()):
        start = time.monotonic()
        folder = place / str(number)
        folder.mkdir(parents=True)
        report(name, verdict(case, device, folder), time.monotonic() - start)


def verdict(case, device, place):
    """``IDENTICAL``, or what is not."""
    try:
        made = case.train(device, place)
        work = partial(_compare, case, made, device)
        found = done_apart(lambda _: {"verdict": work()}, "the plain loop")
    except npp.NaspipeError as error:
        return f"failed: {error}"
    except Exception:  # whatever it is, the other cases are still to come
        return f"failed: {traceback.format_exc()}"
    return found["verdict"]


def _compare(case, made, device):
    deterministic()
    try:
        with plain_torch():
            case.compare(made, plain_device(device))
    except AssertionError as error:
        return f"differs: {str(error) or traceback.format_exc()}"[:2000]
    return IDENTICAL


def deterministic():
    """The settings that the plain loop needs, written out once more on purpose."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_num_threads(1)


def short_profiles(root):
    """Profiles of these runs are short, and kept apart from the user's."""
    run_plan.cached_profile = partial(run_plan.cached_profile, root=root)
    profile_apart.profile = partial(profile_apart.profile, budget_seconds=0.5)
