"""What reads teachers' and students' words, cards, keys and files of labels, for the fuzzing."""

from __future__ import annotations

import json
import struct
from zlib import crc32

import msgpack
import torch

from naspipe.config.errors import ConfigError, TransportError
from naspipe.distill.label_file import LabelFile, LabelWriter
from naspipe.distill.label_messages import (
    Hello,
    LabelAnswer,
    LabelRequest,
    No,
    Ready,
    read_student,
    read_teacher,
    student_frames,
    teacher_frames,
)
from naspipe.distill.label_network import label_digest
from naspipe.distill.teacher_card import TeacherCard, own_pair, pack_card, read_card, read_keys
from naspipe.distill.teacher_pool import CardTable
from naspipe.store.teacher_events import read_teacher_events, tally
from tests.faults.fuzz_target import SEPARATOR, Target, pieces, put, texts

KEY = {"teacher": "ab12", "seed": 1, "data": {"name": "digits"}, "precision": "float32"}
CARD = TeacherCard("a", "tcp://127.0.0.1:29700", "k" * 40, "ab12", "torch 2, cpu, x86_64 1")


def student(data, place):
    found = read_student(pieces(data))
    if isinstance(found, LabelRequest):
        for each in found.fields:
            each.float().sum()
    else:
        sorted(found.key.items())


def teacher(data, place):
    found = read_teacher(pieces(data))
    if isinstance(found, LabelAnswer):
        label_digest(found.label)
        found.label.float().sum()
    else:
        f"{found}".encode()


def card(data, place):
    found = read_card(data)
    pack_card(found)
    f"{found}".encode()


def table(data, place):
    """A registry is asked one thing after the other; what it cannot read it answers with None."""
    made, unread = CardTable(clock=lambda: 1.0), 0
    for part in pieces(data):
        answer = made.answer(part)
        msgpack.packb(answer)
        unread += answer is None
    if unread:
        raise TransportError(f"{unread} of its words were unknown")


def label_file(data, place):
    file = LabelFile(put(place / "labels", data))
    for number in sorted(file.numbers):
        file.label(number).float().sum()
    file.check(KEY, 1)


def label_records(data, place):
    """The key, then descriptions and labels, with lengths and CRC32 that belong to them."""
    key, *parts = pieces(data)
    payloads = [key]
    for start in range(0, len(parts), 2):
        described, *label = parts[start : start + 2]
        length = struct.pack("<I", len(described)) if label else b""
        payloads.append(length + described + b"".join(label))
    made = struct.pack("<8sI", b"naspipeL", 1)
    for number, payload in enumerate(payloads, -1):
        covered = struct.pack("<Qq", len(payload), number)
        made += covered + struct.pack("<I", crc32(payload, crc32(covered))) + payload
    label_file(made, place)


def keys(data, place):
    path = put(place / "keys", data)
    path.chmod(0o600)
    read_keys(path)
    own_pair(path)


def events(data, place):
    """What is no event is left out."""
    put(place / "teachers-0.jsonl", data)
    found = read_teacher_events(place)
    json.dumps(tally(found))
    if len(found) < len(data.splitlines()):
        raise ConfigError("some lines were left out")


def student_seeds(place):
    fields = (torch.ones(2, 3), torch.tensor([1, 2]))
    said = (Hello(KEY), LabelRequest(7), LabelRequest(7, fields))
    return [SEPARATOR.join(map(bytes, student_frames(each))) for each in said]


def teacher_seeds(place):
    said = (Ready("torch 2, cpu"), LabelAnswer(7, torch.ones(2, 3)), No("why"), No("why", 7))
    return [SEPARATOR.join(map(bytes, teacher_frames(each))) for each in said]


def table_seeds(place):
    announce = msgpack.packb(["announce", pack_card(CARD), 6.0])
    words = (["cards"], ["withdraw", "a"], ["hire", 2], ["release", "a"], ["cards"])
    return [SEPARATOR.join([announce, *map(msgpack.packb, words)]), announce]


def file_seeds(place):
    path = place / "written"
    path.unlink(missing_ok=True)
    with LabelWriter(path, KEY) as file:
        file.write(0, torch.ones(2, 3))
        file.write(1, torch.ones(3, 2).T)
    return [path.read_bytes()]


def record_seeds(place):
    entry = msgpack.packb(["float32", [2, 1], [1, 1], 0, False])
    return [SEPARATOR.join([msgpack.packb(KEY), entry, b"\0" * 8])] * 2


COUNTS = {
    "time_ns": 3, "event": "counts", "teacher": "a", "asked": 2, "answered": 2, "repeated": 0,
    "dropped": 0, "audited": 0, "missed": 0, "refused": 0,
}  # fmt: skip
EVENTS = (
    {"time_ns": 1, "event": "joined", "teacher": "a", "seconds": 0.1},
    {"time_ns": 2, "event": "refused", "teacher": "b", "why": "it lies"},
    COUNTS,
    {"time_ns": 4, "event": "end", "audits_missed": 0, "seconds_missing": 0.5},
)


def event_seeds(place):
    return ["".join(json.dumps(each) + "\n" for each in EVENTS).encode()]


PAIR = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7 JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"

LABEL_TARGETS = {
    "students' words": Target(student, (TransportError,), student_seeds),
    "teachers' words": Target(teacher, (TransportError,), teacher_seeds),
    "teachers' cards": Target(card, (TransportError,), lambda place: [pack_card(CARD)]),
    "registries' words": Target(table, (TransportError,), table_seeds),
    "label files": Target(label_file, (ConfigError,), file_seeds),
    "label records": Target(label_records, (ConfigError,), record_seeds),
    "keys": Target(keys, (ConfigError,), texts(PAIR, PAIR[:40] + " a teacher\n# no more\n")),
    "teachers' events": Target(events, (ConfigError,), event_seeds),
}
