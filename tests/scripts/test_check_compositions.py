"""scripts/check_compositions.py: what it draws, fifty of its cases, and that it sees a fault."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from dataclasses import fields
from itertools import islice
from typing import get_args

import pytest

from naspipe.config.definition import MOMENTUM
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Follows, Rule, parse_rule
from naspipe.config.settings import declared
from scripts import check_compositions
from scripts.compositions import runs
from scripts.compositions.broken import FAULTS
from scripts.compositions.cases import FAMILIES, NOT_DRAWN, domain, draw, rules, settled, text_of
from scripts.compositions.pairs import array, pairs_of
from scripts.compositions.runs import DIFFERS, EQUAL, FAILED, REFUSED, Outcome
from scripts.compositions.shown import definitions
from scripts.compositions.shrinking import script_of, shrink

SEEN_BY = {
    "copies_without_prediction": {
        "family": "supernet", "space.stem_rule": "lag(0..2,over=4,predict)", "steps": 7,
        "optimizer_options": "momentum", "recipe.passes": "accumulate:2", "run.groups": 2,
    },
    "lag_one_step_short": {"family": "supernet", "space.stem_rule": "lag(2)", "steps": 7},
    "statistics_folded_twice": {
        "family": "supernet", "space.stem": "batchnorm", "recipe.norms": "deferred",
    },
    "teacher_moved_by_hand": {"family": "momentum", "recipe.norms": "deferred"},
    "draws_not_keyed_by_pass": {
        "family": "supernet", "space.stem": "dropout", "recipe.passes": "accumulate:2",
    },
}  # fmt: skip
"""A small case that shows each deliberate fault."""


def test_every_declared_setting_is_drawn():
    """Also one that is declared tomorrow: it has a domain, or a reason for having none."""
    everything = {key for family in FAMILIES for key in domain(family)}
    assert {f"recipe.{key}" for key in declared(Recipe)} - everything == {"recipe.lr"}
    assert set(MOMENTUM) <= everything
    execution = set(declared(Execution))
    assert {key for key in execution if f"run.{key}" not in everything} <= set(NOT_DRAWN)
    assert {key for key in NOT_DRAWN if NOT_DRAWN[key]} <= execution
    assert all(len(set(map(repr, values))) > 1 for values in domain("momentum").values())


def test_every_option_of_every_rule_is_drawn():
    found = [parse_rule(text) for text in rules()]
    for kind in set(get_args(Rule)) - {Follows}:
        own = [rule for rule in found if type(rule) is kind]
        for field in fields(kind):
            assert len({repr(getattr(rule, field.name)) for rule in own}) > 1, (kind, field.name)


def test_cases_are_plain_settled_and_the_same_for_a_seed():
    one, other = (list(islice(check_compositions.drawn(3), 200)) for _ in range(2))
    assert one == other and len(set(map(text_of, one))) > 190
    assert {case["family"] for case in one} == set(FAMILIES)
    for case in one:
        assert settled(case) == case == json.loads(text_of(case))


def test_an_array_covers_more_pairs_than_as_many_random_cases():
    rows = list(array(30))
    drawn = random.Random(0)
    random_rows = [draw(drawn) for _ in rows]

    def covered(cases):
        return len(set().union(*map(pairs_of, cases)))

    assert covered(rows) > 2 * covered(random_rows)


def test_a_failure_is_shrunk_to_what_it_needs():
    drawn = random.Random(4)
    needed = {"space.stem": "dropout", "run.groups": 2}
    case = settled({**draw(drawn, "supernet"), **needed, "recipe.passes": "accumulate:4"})

    def check(case):
        fails = needed.items() <= case.items()
        return Outcome(DIFFERS, "here") if fails else Outcome(EQUAL)

    smallest, outcome = shrink(case, check(case), check)
    assert smallest == {"family": "supernet", "recipe.passes": "accumulate:2", **needed}
    script = script_of(smallest, outcome)
    compile(script, "script", "exec")
    assert "'space.stem': 'dropout'" in script and script.startswith('"""differs: here"""')


def test_another_error_is_not_the_same_failure():
    """Shrinking must not go from a wrong bit to a refusal, or from one error to another."""
    signatures = {
        Outcome(kind, detail).signature
        for kind, detail in (
            (DIFFERS, "3 losses"), (FAILED, "KeyError: 1"), (FAILED, "TypeError"),
            (REFUSED, "groups=2: no"),
        )
    }  # fmt: skip
    assert len(signatures) == 4
    assert Outcome(DIFFERS, "3 losses").signature == Outcome(DIFFERS, "4 losses").signature


def test_what_is_missing_differs():
    assert runs._compared({"a": "1"}, {"a": "1", "b": "2"}).detail.startswith("naspipe lacks b")
    assert "the plain loop lacks b" in runs._compared({"a": "1", "b": "2"}, {"a": "1"}).detail
    assert runs._compared({"loss/0": "1"}, {"loss/0": "2"}).kind == DIFFERS
    assert runs._compared({"loss/0": "1"}, {"loss/0": "1"}).kind == EQUAL


def test_the_pages_show_definitions():
    shown = {each.arguments for each in definitions()}
    assert ("cv.c3", "--set", "passes=accumulate:8") in shown
    assert ("byol", "--momentum", "0.99:1") in shown
    assert {("cv.c1",), ("cv.c2",), ("cv.c3",), ("nlp.c1",)} <= shown


@pytest.fixture(scope="module")
def warm():
    runs.warm_up()


def test_fifty_random_cases():
    """Definitions and executions that nobody wrote down: the bits of the plain loop.

    In an interpreter of its own: threads of the tests before this one would not survive its forks.
    """
    command = ["--runs", "50", "--seed", "2", "--workers", "2"]
    done = subprocess.run(
        [sys.executable, check_compositions.__file__, *command], capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "50 cases" in done.stdout


@pytest.mark.parametrize("name", FAULTS)
def test_each_deliberate_fault_is_seen(warm, name):
    case = SEEN_BY[name]
    assert settled(case) == case
    assert runs.check(case).kind == EQUAL
    found = runs.check(case, FAULTS[name])
    assert found.kind == DIFFERS and "losses, the first" in found.detail


def test_a_run_that_hangs_is_ended(warm, monkeypatch):
    """Its processes go with it."""
    monkeypatch.setattr(runs, "DEADLINE_SECONDS", 1.0)

    def hang():
        time.sleep(60)

    outcome = runs.check({"family": "supernet"}, hang)
    assert outcome.kind == runs.HANGS and outcome.seconds < 10
