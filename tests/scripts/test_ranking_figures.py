"""Figures and pictures of rankings, from records."""

from __future__ import annotations

import argparse
from itertools import pairwise

import pytest
from scipy.stats import kendalltau

from naspipe.search import scores as rank_agreement
from scripts.bench_ranking import gathered
from scripts.rankings import unit_keys, unit_work, variants
from scripts.rankings.cell_networks import sample
from scripts.rankings.cell_space import DIGITS
from scripts.rankings.found_figures import found_figures
from scripts.rankings.kept_units import KeptUnits
from scripts.rankings.plain_search import METHODS
from scripts.rankings.planned_items import FOUND_SEEDS, Plan, plain_search_unit
from scripts.rankings.ranking_figures import (
    Evidence,
    alone_figures,
    between,
    over_seeds,
    supernet_figures,
    tau_within,
)
from scripts.rankings.ranking_pictures import draw_all

STEPS = 6


def test_tau_within_groups():
    one, other = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2.0, 1.0, 3.0, 4.0, 6.0, 5.0]
    assert tau_within(one, other, [0] * 6) == pytest.approx(
        kendalltau(one, other).statistic, abs=1e-3
    )
    assert tau_within(one, other, [0, 0, 1, 1, 2, 2]) == pytest.approx(-1 / 3, abs=1e-3)
    assert tau_within(one, other, range(6)) == 0.0


def filled(directory):
    """Records as if all had been done: loss rises along the sample, but for the first pair."""
    kept, order = KeptUnits(directory), [1, 0, *range(2, 40)]
    for seed, places in ((1, range(40)), (2, order)):
        for each, place in zip(sample(), places, strict=True):
            scores = {"loss": 1 + place / 40, "top1": 0.9 - place / 100}
            result = {"valid": scores, "test": scores, "params": 100 + place, "curve": [1.0]}
            kept.keep(unit_keys.alone(DIGITS, each, STEPS, seed), result, {})
    judged = {"loss": [n / 10 for n in order], "top1": [n / 40 for n in range(40)]}
    for name in ("csp uniform", "bsp 4"):
        planned = variants.Planned(name, 3000, 1)
        kept.keep(variants.supernet_unit(DIGITS, planned), {"curve": [2.0, 1.0]}, {})
        for unit in variants.judging_units(DIGITS, planned, sample()).values():
            kept.keep(unit, judged, {})
    naswot = [40.0 - place for place in range(40)]
    kept.keep(unit_keys.proxies(DIGITS, sample(), 1), {"synflow": order, "naswot": naswot}, {})
    for seed in FOUND_SEEDS:
        for method in METHODS:
            unit = plain_search_unit(DIGITS, method, 10_000, seed)
            kept.keep(unit, {"best": list(sample()[seed]), "tried": [], "loss": []}, {})
    return kept


def test_what_was_found_is_trained_next(tmp_path):
    options = argparse.Namespace(
        parts=["found"], first=0, alone_steps=7, alone_seeds=2, work=tmp_path
    )
    names = {}
    for done in (False, True):
        kept = filled(tmp_path / "records") if done else KeptUnits(tmp_path / "records")
        names[done] = [
            item.name for item in gathered(Plan(problem=DIGITS, kept=kept, options=options))
        ]
    assert "random search of 25 without a supernet, seed 1" in names[False]
    assert "csp fair, 10000 passes, seed 1" in names[False]
    assert not any("alone" in name for name in names[False])
    assert f"alone {''.join(map(str, sample()[1]))}, 7 steps, seed 2" in " ".join(names[True])
    assert not any(name.startswith("random search of 25") for name in names[True])


def test_short_leaves_the_recipe_and_the_policies(tmp_path):
    options = argparse.Namespace(
        parts=["supernets"], first=0, short=True, variants=None, lengths="3000", seeds="2",
        work=tmp_path,
    )  # fmt: skip
    plan = Plan(problem=DIGITS, kept=KeptUnits(tmp_path / "records"), options=options)
    assert sorted(item.name for item in gathered(plan)) == [
        f"{name}, 3000 passes, seed 2"
        for name in ("asp 4", "asp 8", "bsp 4", "bsp 8", "csp uniform")
    ]
    options.lengths, options.seeds = "10000", None
    assert [item.name for item in gathered(plan)] == [
        f"csp fair, 10000 passes, seed {seed}" for seed in (1, 2, 3)
    ]


def test_figures_and_pictures_of_what_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_agreement, "RESAMPLES", 50)
    evidence = Evidence(problem=DIGITS, kept=filled(tmp_path), steps=STEPS, seeds=2)
    alone, supernets = alone_figures(evidence), supernet_figures(evidence)
    first, second = zip(*(row["loss"] for row in alone["networks"]), strict=True)
    ceiling = alone["loss"]["noise_ceiling"]
    assert ceiling["tau"] == round(kendalltau(first, second).statistic, 3) < 1
    assert ceiling["tau_90"][0] <= ceiling["tau"] <= ceiling["tau_90"][1]
    judged = supernets[0]["judged"]["calibration 4"]
    assert judged["loss"]["tau"] > 0.9 and judged["top1"]["tau"] < -0.9
    assert over_seeds(supernets, "calibration 4", "loss")[0]["passes"] == 3000
    assert between(supernets, "calibration 4", 3000)["mean"] == 1.0
    assert between(supernets, "calibration 4", 9999) == {}
    assert alone["loss"]["by_naswot"]["tau"] > 0.9 > -0.9 > alone["loss"]["by_synflow"]["tau"]
    assert judged["loss+naswot"]["tau"] > 0.9 and abs(judged["loss+synflow"]["tau"]) < 0.9
    assert over_seeds(supernets, "calibration 4", "loss+naswot")[0]["taus"] == [
        judged["loss+naswot"]["tau"]
    ]
    found = found_figures(evidence, alone)
    assert len(found) == 6 and found[0]["loss_regret"] == 0.0
    assert found[-1]["loss_regret"] == pytest.approx(2.5 / 40) and found[-1]["loss_beats"] == 36
    figures = {"alone": alone, "supernets": supernets, "found": found}
    drawn = draw_all(figures, tmp_path / "drawn")
    assert [path.name for path in drawn] == ["taus.png", "scatter.png", "curves.png", "found.png"]
    assert all(path.stat().st_size > 5000 for path in drawn)


def test_nothing_kept_is_no_figure(tmp_path):
    evidence = Evidence(problem=DIGITS, kept=KeptUnits(tmp_path), steps=STEPS, seeds=2)
    alone = alone_figures(evidence)
    assert alone["networks"] == [] == supernet_figures(evidence) == found_figures(evidence, alone)


def test_curves_are_means_of_stretches():
    assert unit_work.curve([1.0, 2.0, 3.0, 4.0], 2) == [1.5, 3.5]
    assert unit_work.curve([1.0, 2.0], 5) == [1.0, 2.0]
    assert all(a < b for a, b in pairwise(unit_work.curve(list(range(1000)), 200)))
