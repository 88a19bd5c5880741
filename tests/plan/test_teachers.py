"""Teachers on the virtual clock: what they read, when they follow, how full they make it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from naspipe.config.errors import InvariantError
from naspipe.config.ids import LayerId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact, Follows, Lag
from naspipe.config.steps import Steps
from naspipe.config.wiring import StreamWiring, Tap, TapRole, Wiring
from naspipe.engine.builder import build_admission, build_controller, new_history
from naspipe.engine.commands import LoadLayer
from naspipe.engine.invariants import led, violations
from naspipe.engine.policies import CausalPolicy
from naspipe.engine.residency import Residency
from naspipe.engine.writes import Followers
from naspipe.plan.virtual_driver import simulate
from scripts.paper.costs import RandomCosts
from scripts.teachers_simulated import Setting, utilisation

BLOCKS, STEPS = 4, 8
EXACT = Exact()


class LateFollowers(Residency):
    """The teacher's layers are there to be read, and have to be loaded to be written."""

    def __init__(self):
        self._asked, self._loading, self._here = set(), set(), set()

    def acquire(self, layers):
        is_write = isinstance(layers, tuple)  # blocks of a run come as a list
        if not is_write or layers[0].stream == 0:
            return len(layers)
        if layers[0] not in self._here:
            self._asked.update(layers)
            return 0
        self._here.difference_update(layers)
        return 1

    def on_loaded(self, layer):
        self._loading.remove(layer)
        self._here.add(layer)

    def plan(self, look_ahead, is_demanded=False, token=None):
        begun, self._asked = self._asked - self._loading, set()
        self._loading |= begun
        return [LoadLayer(layer) for layer in sorted(begun)]


class SlowCopies(RandomCosts):
    """From host memory."""

    def copy_ns(self, layer):
        return super().copy_ns(layer) * 20


def broken(
    seed, lag, stages=2, groups=1, passes=2, candidates=1, left_out=(), student=EXACT,
    is_late=False,
):  # fmt: skip
    """What the logs of a student and its momentum teacher show, under random times.

    ``left_out`` are passes of a step that the teacher has not, the last ones; ``student`` is the
    rule of all layers of the student; ``is_late``: see :class:`LateFollowers`.
    """
    steps = Steps(passes, draws_each=candidates > 1)
    rules = [[student] * (BLOCKS + 1), [Follows(0, block, lag) for block in range(BLOCKS)]]
    pairs = ((0, 1), (1, 0)) if passes > 1 else None
    tap = Tap((1, BLOCKS - 1), (0, BLOCKS), TapRole.LESSON, pairs)
    wiring = Wiring(streams=(StreamWiring(), StreamWiring(is_trained=False, rank=1)), taps=(tap,))
    workers = stages * groups
    history = new_history(rules, wiring, steps=steps)
    controllers = [
        build_controller(
            stage, rules, history=history, wiring=wiring, steps=steps,
            residency=LateFollowers() if is_late else None,
        )
        for stage in range(workers)
    ]  # fmt: skip

    def subnet(stream, number):
        length = BLOCKS + 1 - stream
        chain = tuple((number // passes * 7 + block) % candidates for block in range(BLOCKS))
        is_left_out = stream and number % passes in left_out
        return Subnet(stream, number, () if is_left_out else (*chain, 0)[:length])

    def admitted(stream, number):
        length = BLOCKS + 1 - stream
        bounds = (0, *(BLOCKS * s // stages for s in range(1, stages)), length)
        cut = Partition(bounds).in_group(steps.group(number, groups), groups)
        own = subnet(stream, number)
        return own, cut if own.chain else cut.without_blocks, None, stream == 0

    def admissions():
        ahead = student.subnets if isinstance(student, Lag) else 0
        windows = ((2 + ahead) * passes, (lag + 2 + ahead) * passes)
        count = STEPS * passes
        return [build_admission("csp", count, window=w, steps=Steps(passes)) for w in windows]

    costs = SlowCopies(seed) if is_late else RandomCosts(seed)
    stages = simulate(admitted, controllers, costs, admissions)
    logs = [[a for own in stages for a in own if a.layer.stream == n] for n in range(2)]
    own = [[subnet(n, y) for y in range(STEPS * passes)] for n in range(2)]
    found = list(violations(logs[0], rules[0], own[0], steps=steps, buffered=()))
    found += violations(logs[1], rules[1], own[1], steps=steps, is_trained=False)
    alone = [[a._replace(layer=a.layer._replace(stream=0)) for a in log] for log in logs]
    return found + list(led(*alone, rules[1], steps))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("candidates", [1, 3])
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_versions_are_those_of_the_definition(lag, candidates, groups):
    for seed in range(12):
        assert broken(seed, lag, groups=groups, candidates=candidates) == []


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("behind", [1, 3])
def test_a_student_with_stale_reads_waits_for_its_follower(lag, behind):
    """Its next WRITE is owed by the time that the one before it ends."""
    for seed in range(12):
        assert broken(seed, lag, passes=1, student=Lag(behind)) == []


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("passes", [1, 2, 3])
@pytest.mark.parametrize("student", [EXACT, Lag(2)])
def test_a_follower_that_is_not_on_the_device_is_waited_for(lag, passes, student):
    """What it has written of the step's first passes does not count."""
    for seed in range(12):
        found = broken(seed, lag, passes=passes, student=student, is_late=True)
        assert found == []


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_passes_that_nobody_needs(lag):
    for seed in range(8):
        assert broken(seed, lag, passes=4, left_out=(2, 3)) == []


def test_a_follower_of_other_passes_goes_by_steps(monkeypatch):
    """The last pass that uses it is not the last one that uses its source."""
    made = Followers.__init__
    monkeypatch.setattr(Followers, "__init__", lambda own, rules, newest, steps: made(
        own, rules, newest))  # fmt: skip
    with pytest.raises(InvariantError, match="stopped before"):
        broken(0, 1, passes=4, left_out=(2, 3))


@pytest.mark.parametrize("rule", ["follows at once", "reads the newest"])
def test_a_broken_rule_is_seen(monkeypatch, rule):
    if rule == "reads the newest":
        read = CausalPolicy.version_to_read

        def newest(self, rule, users, reader):
            return users[-1] if isinstance(rule, Follows) else read(self, rule, users, reader)

        monkeypatch.setattr(CausalPolicy, "version_to_read", newest)
        monkeypatch.setattr("naspipe.engine.inputs.VersionBook.is_clear", lambda *_: True)
    else:
        monkeypatch.setattr(Followers, "may_end_step", lambda *_: True)
    assert any(broken(seed, 1) for seed in range(12))


def test_a_source_waits_for_its_follower():
    """Its next WRITE would change the version that the follower is made of."""
    ended = {LayerId(0, 0, 0): 3, LayerId(1, 0, 0): -1}
    followers = Followers([[Exact()], [Follows(0, 0, 1)]], ended.__getitem__)
    source, follower = ended
    assert not followers.may_end_step(follower, 3)
    assert followers.wrote(source, 3) == [follower]
    assert followers.may_end_step(follower, 3) and not followers.may_end_step(source, 7)
    ended[follower] = 3
    assert followers.wrote(follower, 3) == [source]
    assert followers.may_end_step(source, 7)


@pytest.mark.parametrize("lag", [0, 1, 2, None])
@pytest.mark.parametrize(
    ("stages", "batches", "views", "ratio"),
    [
        (2, 2, 1, 1.0),
        (2, 2, 2, 0.5),
        (2, 1, 1, 2.0),
        (4, 6, 1, 1.0),
        (4, 3, 2, 1.0),
        (4, 3, 1, 2.0),
    ],
)
def test_how_full_a_teacher_makes_it(stages, batches, views, ratio, lag):
    setting = Setting(stages=stages, batches=batches, views=views, ratio=ratio, lag=lag, parts=8)
    assert utilisation(setting) == pytest.approx(setting.formula, abs=0.025)


@pytest.mark.parametrize("lag", [1, None])
def test_the_more_blocks_the_nearer_to_the_formula(lag):
    """A task of the student may have to wait for one block of the teacher, and for nothing else."""
    off = []
    for parts in (4, 8, 16):
        setting = Setting(stages=4, batches=3, ratio=2.0, lag=lag, parts=parts)
        off.append(setting.formula - utilisation(setting))
    assert all(later == pytest.approx(earlier / 2, rel=0.1) for earlier, later in pairwise(off))


@pytest.mark.parametrize("lag", [1, None])
@pytest.mark.parametrize(("views", "ratio"), [(1, 2.0), (2, 1.0)])
def test_enough_forwards_fill_it(views, ratio, lag):
    setting = Setting(stages=4, batches=6, views=views, ratio=ratio, lag=lag)
    assert setting.is_filled
    assert utilisation(setting) >= 0.98


def test_one_step_old_pays():
    """Two views, equal networks, four stages: the paper's case."""
    exact, older = (utilisation(Setting(stages=4, batches=3, views=2, lag=lag)) for lag in (0, 1))
    assert older / exact >= 1.20
