"""What the top of the page says of a run, by logs made by hand."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest

from naspipe.config.ids import Access, AccessKind, LayerId, StreamId
from naspipe.report.in_words import in_words, limits
from naspipe.report.recorded import Recorded, read_run
from naspipe.report.run_tables import run_tables
from tests.store.fake_run import CHAINS, FakeRun, sequential_accesses

F, B = AccessKind.FORWARD, AccessKind.BACKWARD


def on_two_stages(chains: list[tuple[int, ...]]) -> list[Access]:
    """One record after another: whoever is not at it waits."""
    return [
        each._replace(stage=each.layer.block // 2) for each in sequential_accesses(chains, frozen=0)
    ]


def written(path: Path, chains: list[tuple[int, ...]], sampler: str = "uniform") -> Recorded:
    run = FakeRun(stages=2, accesses=on_two_stages(chains))
    run.losses = run.losses[:1] * len(chains)
    run.definition = {"seed": 1, "sampler": sampler, "policy": "csp", "data": {"name": "x"}}
    return read_run(run.write(path))


def test_shares_are_those_of_the_table(tmp_path: Path) -> None:
    run = written(tmp_path / "run", CHAINS)
    table = run_tables(run, "run")
    waited = sum(map(sum, table["wait_totals_ns"].values())) / (2 * table["end_ns"])
    assert table["words"][0] == f"2 stages were busy {1 - waited:.0%} of the time.".replace(
        "%", " %"
    )
    assert waited == pytest.approx(0.5)  # one of the two at a time
    for reason, phrase in (
        ("input", "for what another stage computes"),
        ("causal", "earlier subn"),
    ):
        share = sum(table["wait_totals_ns"][reason]) / (2 * table["end_ns"])
        said = [each for each in table["words"] if phrase in each]
        assert (share > 0.02) == bool(said), reason
        assert all(each.startswith(f"{100 * share:.0f} % was waiting") for each in said)
    assert "input" in {name for name, ns in table["wait_totals_ns"].items() if sum(ns)}


def test_what_limits_is_what_a_plan_says(tmp_path: Path) -> None:
    run = written(tmp_path / "run", [(0, 0, 0, 0)] * 20)
    found = limits(run)
    first = found.found[0]
    assert first.text.startswith("causal order") and "would help" in first.text
    assert first.busy_stages == min(each.busy_stages for each in found.found) < 2
    words = run_tables(run, "run")["words"]
    assert f"What limits it most is {first.text} ({first.busy_stages:.1f} of 2 stages)." in words


def of_equal_choices(path: Path, candidates: int, sampler: str) -> Recorded:
    """Every subnet takes the same candidates of two blocks, where there are many."""
    run = written(path, [(0, 0, 0, 0)] * 40, sampler)
    run.labels.candidates = (1, candidates, candidates, 1)
    run.labels.is_shared = (True, False, False, True)
    run.labels.rules = (run.labels.rules[0],) * 4 if candidates < 0 else run.labels.rules
    return run


def test_a_spaced_sampler_is_named_where_it_would_help(tmp_path: Path) -> None:
    frozen_head = of_equal_choices(tmp_path / "run", 12, "uniform")
    frozen_head.labels.rules = (*frozen_head.labels.rules[:3], frozen_head.labels.rules[0])
    found = limits(frozen_head)
    assert found.found[0].text.startswith("causal order")
    assert found.sampler == "spaced:4" and 1 <= found.busy < found.sampled_busy <= 2
    assert found.busy == pytest.approx(found.found[0].busy_stages)
    words = in_words(frozen_head, {name: [0, 0] for name in reasons()}, 100)
    assert any(
        each.startswith("The sampler spaced:4 would help: causal order lets ") for each in words
    )


@pytest.mark.parametrize("case", ["spaced already", "one candidate", "an exact head"])
def test_and_not_where_it_would_not(tmp_path: Path, case: str) -> None:
    sampler = "spaced:4" if case == "spaced already" else "uniform"
    run = of_equal_choices(tmp_path / "run", 1 if case == "one candidate" else 12, sampler)
    if case != "an exact head":
        run.labels.rules = (*run.labels.rules[:3], run.labels.rules[0])
    else:
        run.labels.rules = (run.labels.rules[1],) * 4  # exact from the stem on: all is in a row
    assert limits(run).sampler == ""


def test_nothing_is_said_of_what_is_not_there(tmp_path: Path) -> None:
    run = written(tmp_path / "run", CHAINS)
    other = [each._replace(layer=LayerId(StreamId(1), 0, 0)) for each in run.accesses[:1]]
    assert not limits(run._replace(accesses=[*run.accesses, *other])).found
    forwards = [each for each in run.accesses if each.kind is F]
    back = [each._replace(stage=stage) for each, stage in zip(forwards, cycle((1, 0)))]
    assert not limits(run._replace(accesses=back)).found
    assert not limits(
        run._replace(accesses=[each for each in run.accesses if each.kind is B])
    ).found
    assert in_words(run._replace(accesses=[]), {}, 0) == []


def reasons() -> list[str]:
    from naspipe.report.reductions import Reason

    return [reason.value for reason in Reason]
