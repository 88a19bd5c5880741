"""The benchmark of rankings: units are kept, keys say what they are, and taus are right."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from numpy.random import RandomState

import naspipe as npp
from naspipe.streams.stream_file import write_stream
from scripts.rankings import unit_keys, unit_work, variants
from scripts.rankings.cell_networks import convolutions, sample, strata_shares, terms_of
from scripts.rankings.cell_space import DIGITS, Problem, setting, torch
from scripts.rankings.kept_units import KeptUnits
from scripts.rankings.plain_search import METHODS, mutated, random_architecture
from scripts.rankings.plain_training import train_plainly
from scripts.rankings.unit_queue import Item, run_items
from scripts.rankings.unit_work import Worker

STEPS = 6
SKIPS = (1, 1, 1, 1, 1, 1)


@pytest.fixture
def worker(tmp_path, one_thread):
    return Worker(KeptUnits(tmp_path / "records"), tmp_path / "work")


def never(*_):
    raise AssertionError("done again")


def test_a_network_alone_is_kept_and_is_the_same_again(worker, tmp_path, monkeypatch):
    unit = unit_keys.alone(DIGITS, sample()[3], STEPS, 1)
    found = worker.alone(unit)
    again = Worker(KeptUnits(tmp_path / "others"), tmp_path / "work").alone(unit)
    assert again == found and len(found["curve"]) == STEPS
    assert worker.alone({**unit, "seed": 2}) != found
    monkeypatch.setattr(unit_work, "train_plainly", never)
    assert worker.alone(unit) == found
    (first, second) = worker.kept.read("alone").values()
    assert first["unit"] == unit and first["made"]["seconds"] >= 0 and second["unit"]["seed"] == 2


def test_alone_has_the_bits_of_a_run_with_one_subnet(tmp_path, one_thread):
    unit, own = unit_keys.alone(DIGITS, sample()[5], STEPS, 2), setting(DIGITS)
    choices = own.choices(tuple(unit["architecture"]))
    write_stream(listed := tmp_path / "one.jsonl", [choices])
    run = npp.train(
        own.space, own.train, own.loss, steps=STEPS, seed=2, sampler=f"repeat:{listed}",
        run_dir=tmp_path / "run", progress=False, **unit["recipe"],
    )  # fmt: skip
    blocks, losses = train_plainly(unit, own, own.space.chain(choices))
    assert losses == run.losses
    for number, option in enumerate(own.space.chain(choices)):
        kept = run.chosen(number, option).state_dict()
        for name, value in blocks[number].state_dict().items():
            assert torch.equal(value, kept[name])


@pytest.mark.long
def test_a_supernet_and_its_judgings_are_kept(worker, monkeypatch):
    planned = variants.Planned("bsp 4", 8, 1)
    unit = variants.supernet_unit(DIGITS, planned)
    few = sample()[:3]
    (judging,) = variants.judging_units(DIGITS, planned, few).values()
    search = unit_keys.search(unit, budget=4, seed=1, calibration=1, validation=1)
    worker.supernet(unit, [judging], ())
    assert not list(worker.work.glob("supernet-*"))
    assert len(worker.kept.find(judging)["loss"]) == len(few)
    before = worker.kept.find(judging)
    worker.supernet(unit, [judging], [search])  # trained again, as its run is gone
    assert worker.kept.find(judging) == before
    assert len(worker.kept.find(search)["best"][0]) == 6
    monkeypatch.setattr(npp, "train", never)
    worker.supernet(unit, [judging], [search])


def test_a_search_without_a_supernet_keeps_each_network(worker, monkeypatch):
    unit = unit_keys.found(DIGITS, "random", budget=3, short_steps=2, seed=1)
    found = worker.found(unit)
    assert len(worker.kept.read("alone")) == len(found["tried"]) == 3
    assert found["loss"][found["tried"].index(found["best"])] == min(found["loss"])
    monkeypatch.setattr(unit_work, "train_plainly", never)
    assert worker.found(unit) == found


def test_a_supernet_that_diverges_is_kept_as_such(worker):
    unit = variants.supernet_unit(DIGITS, variants.Planned("bsp 4", 16, 1))
    unit["recipe"] = {**unit["recipe"], "lr": 1e30}
    worker.supernet(unit, [], [])
    assert "expected a finite loss" in worker.kept.find(unit)["failed"]


@pytest.mark.long
def test_proxies_are_scored_once(tmp_path):
    worker = Worker(KeptUnits(tmp_path / "records"), tmp_path / "work")
    unit = unit_keys.proxies(DIGITS, [SKIPS, (3, 3, 3, 3, 3, 3)], 1)
    found = worker.proxies(unit)
    assert found["naswot"][0] < found["naswot"][1] and found["synflow"][0] < found["synflow"][1]
    assert worker.proxies(unit) == found and not list((tmp_path / "work").iterdir())


@pytest.mark.long
def test_items_are_done_until_the_hours_are_over(capsys):
    unit = unit_keys.alone(DIGITS, SKIPS, STEPS, 1)
    items = [Item(name=f"n{n}", do=unit_keys.words_of, given=(unit,), passes=1) for n in range(3)]
    assert run_items(items, 1, 0.0, 1.0)
    assert "3 items wait" in capsys.readouterr().out
    broken = Item(name="broken", do=unit_keys.words_of, given=({"kind": "alone"},), passes=1)
    assert not run_items([*items, broken], 2, 1.0, 1.0)
    said = capsys.readouterr().out
    assert said.count("alone 111111, 6 steps, seed 1") == 3 and "broken: failed: KeyError" in said


def test_whatever_changes_makes_another_key():
    base = unit_keys.alone(DIGITS, SKIPS, STEPS, 1)
    others = [
        unit_keys.alone(problem, architecture, steps, seed)
        for problem, architecture, steps, seed in (
            (Problem(), SKIPS, STEPS, 1), (replace(DIGITS, width=8), SKIPS, STEPS, 1),
            (replace(DIGITS, batch=64), SKIPS, STEPS, 1), (DIGITS, (*SKIPS[:5], 2), STEPS, 1),
            (DIGITS, SKIPS, 7, 1), (DIGITS, SKIPS, STEPS, 2),
        )
    ]  # fmt: skip
    others += [{**base, "recipe": {**base["recipe"], "lr": 0.1}}]
    for name in variants.VARIANTS:
        planned = variants.Planned(name, 1000, 1)
        others += [variants.supernet_unit(DIGITS, planned)]
        others += variants.judging_units(DIGITS, planned, sample()).values()
    keys = [unit_keys.key_of(unit) for unit in (base, *others)]
    assert len(set(keys)) == len(keys)
    assert unit_keys.key_of(json.loads(json.dumps(base))) == keys[0]


KEYS = ["60946008dac6887d", "48bf1765ff265ad0", "cc60f84dbfe7ded1"]
"""Of a network alone, of the first supernet, and of one of asp."""


def test_keys_stay_what_they_are():
    """Or records would be worth nothing."""
    base = variants.Planned(variants.BASE, 1000, 1)
    units = (
        unit_keys.alone(Problem(), SKIPS, 1500, 1),
        variants.supernet_unit(Problem(), base),
        variants.supernet_unit(Problem(), base._replace(name="asp 8")),
    )
    assert [unit_keys.key_of(unit) for unit in units] == KEYS


def test_equal_steps_are_equal_passes():
    for name, steps in (("csp uniform", 3000), ("csp fairnas", 600), ("csp sandwich", 750)):
        planned = variants.Planned(name, 3000, 1)
        assert variants.supernet_unit(DIGITS, planned)["steps"] == steps
    table = list(variants.planned())
    assert len(set(table)) == len(table)


def test_records_survive_a_torn_line_and_come_once(tmp_path):
    kept, unit = KeptUnits(tmp_path), unit_keys.alone(DIGITS, SKIPS, STEPS, 1)
    kept.keep(unit, {"n": 1}, {})
    path = tmp_path / "alone.jsonl"
    path.write_text(path.read_text() + '{"key": "torn')
    other = {**unit, "seed": 2}
    for number in (2, 3):
        kept.keep(other, {"n": number}, {})
    assert [kept.find(each) for each in (unit, other)] == [{"n": 1}, {"n": 2}]
    assert len(path.read_text().splitlines()) == 3


def test_two_at_work_are_refused(tmp_path):
    with KeptUnits(tmp_path).alone_at_work():
        second = KeptUnits(tmp_path).alone_at_work()
        with pytest.raises(SystemExit, match="another"):
            second.__enter__()
    with KeptUnits(tmp_path).alone_at_work():
        pass


def test_networks_that_are_alike():
    assert terms_of((0, 1, 0, 3, 0, 0)) == terms_of((0, 0, 3, 3, 0, 0))  # nobody reads nodes 1, 2
    assert terms_of((1, 0, 0, 0, 3, 0)) == terms_of((0, 0, 0, 3, 0, 0))  # by way of node 1
    assert terms_of((4, 0, 1, 0, 0, 1)) == terms_of((0, 0, 0, 4, 0, 0))
    assert terms_of((1, 0, 0, 1, 1, 0)) != terms_of((0, 0, 0, 1, 0, 0))  # twice the input
    assert terms_of((2, 0, 0, 0, 3, 0)) != terms_of((3, 0, 0, 0, 2, 0))
    assert convolutions((2, 3, 0, 1, 0, 0)) == 0  # neither leads to the output
    assert convolutions((2, 0, 0, 0, 3, 0)) == 2


def test_the_sample_has_different_networks_of_all_strata():
    assert len({terms_of(each) for each in sample()}) == len(sample()) == 40
    assert {convolutions(each) for each in sample()[:7]} == set(range(7))
    assert sum(strata_shares().values()) == pytest.approx(1)


def test_plain_searches_find_what_is_good():
    def judge(architecture):
        return -sum(operation == 3 for operation in architecture)

    for search in METHODS.values():
        tried = search(judge, 60, 1)
        assert tried == search(judge, 60, 1) != search(judge, 60, 2) and len(tried) == 60
    random, evolution = (sum(n for n, _ in each(judge, 60, 1)) for each in METHODS.values())
    assert evolution < random


def test_a_mutation_changes_one_edge():
    draws = RandomState(1)
    for _ in range(50):
        parent = random_architecture(draws)
        child = mutated(parent, draws)
        assert sum(a != b for a, b in zip(parent, child, strict=True)) == 1
