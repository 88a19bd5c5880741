"""Every kind of broken log is found, and a sound one is not."""

from __future__ import annotations

import pytest

from naspipe.config.ids import Access, AccessKind, LayerId, Subnet
from naspipe.config.rules import Exact, Frozen, Lag
from naspipe.engine.invariants import violations

F, B, W = AccessKind.FORWARD, AccessKind.BACKWARD, AccessKind.WRITE
RULES = (Lag(1), Exact(), Frozen())
SUBNETS = [Subnet(0, y, (0, candidate, 0)) for y, candidate in enumerate((0, 0, 1, 0))]


def access(block, candidate, user, kind, version, start):
    return Access(LayerId(0, block, candidate), user, kind, version, 0, start, start + 10)


def sound():
    """One subnet after the other: F F F, then B W of each block."""
    log, now = [], 0
    reads = {0: [-1, -1, 0, 1], 1: [-1, 0, -1, 1], 2: [-1] * 4}
    for subnet in SUBNETS:
        y = subnet.sequence_id
        for kind in (F, B, W):
            for block in range(3):
                if kind is W and block == 2:
                    continue
                version = y if kind is W else reads[block][y]
                log.append(access(block, subnet.chain[block], y, kind, version, now))
                now += 10
    return log


def broken(block, user, kind, **changes):
    """The sound log with one access changed."""
    log = sound()
    place = next(
        place
        for place, a in enumerate(log)
        if (a.layer.block, a.sequence_id, a.kind) == (block, user, kind)
    )
    log[place] = log[place]._replace(**changes)
    return log


def found(log, rules=RULES, subnets=SUBNETS):
    return list(violations(log, rules, subnets))


def time_of(block, user, kind):
    return next(
        (a.start_ns, a.end_ns)
        for a in sound()
        if (a.layer.block, a.sequence_id, a.kind) == (block, user, kind)
    )


def test_a_sound_log_in_any_order():
    assert found(sound()) == []
    assert found(reversed(sound())) == []
    assert found([], subnets=[]) == []


@pytest.mark.parametrize("kind", [F, B])
@pytest.mark.parametrize(
    ("block", "user", "right"), [(0, 1, -1), (0, 3, 1), (1, 0, -1), (1, 3, 1), (2, 2, -1)]
)
@pytest.mark.parametrize("wrong", [-1, 0, 1, 2, 3, 9])
def test_a_wrong_version(block, user, right, kind, wrong):
    lines = found(broken(block, user, kind, version=wrong))
    if wrong == right:
        assert lines == []
    else:
        assert len(lines) == 1
        assert lines[0].endswith(f"/{user}{kind.value}v{wrong}@0: expected to read version {right}")


def test_a_write_of_another_number():
    assert found(broken(1, 1, W, version=2)) == ["0:1.0/1Wv2@0: expected to write version 1"]


@pytest.mark.parametrize("place", range(len(sound())))
def test_any_access_that_is_missing(place):
    log = sound()
    gone = log.pop(place)
    assert found(log) == [f"layer {gone.layer}: accesses are missing or not of this stream"]


@pytest.mark.parametrize("place", range(len(sound())))
def test_any_access_that_comes_twice(place):
    log = sound()
    assert found([*log, log[place]]) == [f"{log[place]}: recorded twice"]


@pytest.mark.parametrize(
    "extra",
    [
        access(1, 1, 3, F, 2, 900),  # subnet 3 did not choose it
        access(1, 2, 0, F, -1, 900),  # nobody did
        access(1, 0, 4, F, 3, 900),  # there is no subnet 4
        access(2, 0, 1, W, 1, 900),  # nobody writes a frozen layer
    ],
)
def test_accesses_that_nobody_was_to_make(extra):
    line = f"layer {extra.layer}: accesses are missing or not of this stream"
    assert found([*sound(), extra]) == [line]


def test_subnets_that_left_nothing():
    lines = found(sound(), subnets=[*SUBNETS, Subnet(0, 4, (0, 2, 0))])
    assert [line.partition(":")[0] for line in lines] == ["layer 0"] * 3
    assert "layer 0:1.2: accesses are missing" in lines[1]


def test_writes_that_overlap():
    """WRITEs of a lagging layer, whose readers need not wait for them."""
    start, end = time_of(0, 0, W)
    lines = found(broken(0, 0, W, end_ns=time_of(0, 1, W)[0] + 5))
    assert [line for line in lines if "had ended" in line] == [
        "0:0.0/1Wv1@0: began before 0:0.0/0Wv0@0 had ended"
    ]
    assert found(broken(0, 0, W, start_ns=start, end_ns=end)) == []


def test_a_read_before_its_version_was_written():
    written = time_of(1, 0, W)[1]
    early = broken(1, 1, F, start_ns=written - 1)
    assert found(early) == ["0:1.0/1Fv0@0: began before version 0 was written"]
    assert found(broken(1, 1, F, start_ns=written)) == []
    lagging = broken(0, 3, F, start_ns=time_of(0, 1, W)[1] - 1)
    assert found(lagging) == ["0:0.0/3Fv1@0: began before version 1 was written"]


@pytest.mark.parametrize(("earlier", "later"), [(F, B), (B, W)])
def test_a_forward_backward_and_write_that_overlap(earlier, later):
    lines = found(broken(1, 0, earlier, end_ns=time_of(1, 0, later)[0] + 1))
    assert lines == ["0:1.0/0Fv-1@0: its READ, backward and WRITE overlap"]


def test_a_frozen_layers_accesses_keep_their_order_too():
    lines = found(broken(2, 0, F, end_ns=time_of(2, 0, B)[0] + 1))
    assert lines == ["0:2.0/0Fv-1@0: its READ, backward and WRITE overlap"]


def test_streams_are_told_apart():
    other = [a._replace(layer=a.layer._replace(stream=1)) for a in sound()]
    subnets = [*SUBNETS, *(subnet._replace(stream=1) for subnet in SUBNETS)]
    assert found([*sound(), *other], subnets=subnets) == []
    assert len(found(other)) == 8, "every layer is either missing or not of the stream"
