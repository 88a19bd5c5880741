"""Events on the wire: what comes back is what was sent, and garbage is refused."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.errors import LogError
from naspipe.config.ids import LayerId, Subnet
from naspipe.config.partition import Partition
from naspipe.engine.events import (
    BlockFinished,
    ContributionArrived,
    Event,
    InputArrived,
    LayerLoaded,
    LayerSaved,
    Priorities,
    SubnetAdmitted,
    Task,
    TaskKind,
    VersionArrived,
    WriteFinished,
    parse_task,
)
from naspipe.store.event_log import EventLogWriter, decode_event, encode_event, read_events
from naspipe.store.frames import FramedWriter

numbers = st.integers(0, (1 << 63) - 1)
layers = st.builds(LayerId, numbers, numbers, numbers)
tasks = st.builds(Task, numbers, numbers, st.sampled_from(TaskKind), numbers, numbers)
options = st.lists(numbers, max_size=9).map(tuple)
subnets = st.builds(Subnet, numbers, numbers, options, options)
partitions = st.builds(Partition, st.lists(numbers, min_size=1, max_size=5).map(tuple), options)
paths = st.lists(numbers, max_size=4).map(tuple)
priorities = st.one_of(st.none(), st.builds(Priorities, paths, paths, paths))
events = st.one_of(
    st.builds(SubnetAdmitted, numbers, subnets, partitions, priorities, st.booleans()),
    st.builds(
        InputArrived, numbers, tasks, st.lists(tasks, max_size=2).map(tuple), st.text(max_size=9)
    ),
    st.builds(BlockFinished, numbers, tasks, numbers, numbers),
    st.builds(WriteFinished, numbers, layers, numbers, numbers, st.text(max_size=20)),
    st.builds(VersionArrived, numbers, layers, numbers),
    st.builds(ContributionArrived, numbers, st.text(max_size=9), numbers, numbers, numbers),
    st.builds(LayerLoaded, numbers, layers),
    st.builds(LayerSaved, numbers, layers),
)
EVENTS = ("SubnetAdmitted", "InputArrived", "BlockFinished", "WriteFinished", "VersionArrived")
TUPLES = ("LayerId", "Partition", "Priorities", "Subnet", "Task", "tuple")
names = st.sampled_from([*EVENTS, *TUPLES, "Event", "F", ""])
atoms = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5)
)
garbage = st.recursive(
    st.one_of(names, atoms),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.tuples(names, st.lists(inner, max_size=5)).map(lambda pair: [pair[0], *pair[1]]),
        st.tuples(st.just("TaskKind"), st.one_of(st.sampled_from("FB"), inner)).map(list),
        st.dictionaries(st.text(max_size=3), inner, max_size=2),
    ),
    max_leaves=15,
)


@given(events)
def test_an_event_comes_back(event: Event) -> None:
    message = msgpack.unpackb(msgpack.packb(encode_event(event)))
    assert message == encode_event(event)
    again = decode_event(message)
    assert again == event and type(again) is type(event)
    assert repr(again) == repr(event)  # nested types too, which tuple equality does not see


def test_an_event_on_the_wire() -> None:
    event = InputArrived(5, Task(0, 12, TaskKind.BACKWARD, 3))
    assert encode_event(event) == [
        "InputArrived",
        5,
        ["Task", 0, 12, ["TaskKind", "B"], 3, 0],
        ["tuple"],
        "chain",
    ]


@settings(max_examples=400)
@given(garbage)
def test_garbage_is_refused_as_such(message: object) -> None:
    try:
        decoded = decode_event(message)
    except LogError as error:
        assert str(error).startswith("expected a controller event, found ")
        assert len(str(error)) < 300
    else:
        assert isinstance(decoded, Event)


@pytest.mark.parametrize(
    "message",
    [
        None, 3, "", "InputArrived", [], ["InputArrived"], ["Nothing", 1], [["InputArrived"], 1],
        ["InputArrived", 1, ["Job", 1]], ["InputArrived", 1, ["Task", 1]], ["InputArrived", 1, []],
        ["BlockFinished", 1, ["TaskKind", "X"], 0, 0], ["InputArrived", 1, 2, 3],
        ["WriteFinished", 1, ["LayerId", 0, 0, 0, 0], 0, 0],
        ["InputArrived", 1, ["TaskKind"]], ["InputArrived", "soon", "nobody"],
        ["InputArrived", True, ["Task", 0, 1, ["TaskKind", "F"], 0]],
        ["InputArrived", 1, ["Task", 0, 1.0, ["TaskKind", "F"], 0]],
        ["InputArrived", 1, ["Task", 0, 1, "F", 0]], ["InputArrived", 1, ["LayerId", 0, 1, 0]],
        ["SubnetAdmitted", 1, ["Subnet", 0, 0, ["tuple", "x"]], ["Partition", ["tuple", 0, 1]]],
    ],
)  # fmt: skip
def test_messages_that_are_no_events(message: object) -> None:
    with pytest.raises(LogError, match="expected a controller event, found"):
        decode_event(message)


@pytest.mark.parametrize("version", [1, 3])
def test_a_log_of_another_schema_is_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "events"
    with FramedWriter(path, b"NPEVENTS", version) as frames:
        frames.append(msgpack.packb(encode_event(InputArrived(5, parse_task("0.1B@1")))))
    said = f"schema version 2, found bytes 0{version}000000; read it with the naspipe that wrote it"
    with pytest.raises(LogError, match=said):
        list(read_events(path))
    with pytest.raises(LogError, match=said):
        EventLogWriter(path)
