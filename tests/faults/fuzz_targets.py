"""What reads files and messages, as functions of bytes; each may raise documented errors only.

Checksums are made to fit, where there are any: what lies behind them is read, too.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from contextlib import suppress

import msgpack
import numpy as np
import torch

from naspipe.cli import train
from naspipe.cli.train import StreamOptions, parse_streams
from naspipe.config.definition import Settings, apply_settings
from naspipe.config.errors import ConfigError, DataError, LogError, TransportError
from naspipe.config.ids import LayerId, WorkerId
from naspipe.config.recipe_file import read_recipe
from naspipe.data.fairseq import open_tokens, write_mmap
from naspipe.engine.events import Task, TaskKind
from naspipe.launch.hosts import read_word
from naspipe.store.checkpoints import read_checkpoint, write_checkpoint_manifest
from naspipe.store.run_directory import RunDirectory
from naspipe.store.shards import RawTensor
from naspipe.store.validations import read_validations
from naspipe.streams.stream_file import read_stream
from naspipe.wire.messages import (
    ContributionMessage,
    ControlMessage,
    InputMessage,
    Place,
    VersionMessage,
    announcement_frames,
    launcher_frames,
    read_message,
    release_frames,
    stage_frames,
)
from naspipe.wire.reports import read_report
from tests.faults.fuzz_target import Target, pieces, put, texts
from tests.faults.label_targets import LABEL_TARGETS
from tests.faults.log_targets import LOG_TARGETS
from tests.store.shards import write_shard


def message(data, place):
    header, *frames = pieces(data)
    found = read_message(header, frames)
    if isinstance(found, VersionMessage):
        target = torch.zeros(3, 2)
        for _, tensor in found.state:
            tensor.value()
            if tensor.frame is not None:
                with suppress(TransportError):
                    tensor.copy_to(target)
    return found


def report(data, place):
    with suppress(TransportError):
        read_word(data)
    return read_report(data)


def shard(data, place):
    put(place / "stage-0.safetensors", data)
    length = 8 + min(int.from_bytes(data[:8], "little"), len(data))
    digest = hashlib.blake2b(data[:length], digest_size=32).hexdigest()
    pieces = [data[length : length + 16], data[length + 16 :]]
    checksums = [[len(piece), zlib.crc32(piece)] for piece in pieces if piece]
    entry = {"file": "stage-0.safetensors", "bytes": len(data), "crc32": checksums}
    entry["header_blake2b"] = digest
    write_checkpoint_manifest(place, {"subnets": 4, "shards": [entry]})
    return read_checkpoint(place)


def manifest(data, place):
    """Of a checkpoint, with the digest that belongs to it where it is an object at all."""
    try:
        content = json.loads(data)
        content.pop("blake2b", None)
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        digest = hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
        data = json.dumps({**content, "blake2b": digest}).encode()
    except (ValueError, AttributeError, TypeError, RecursionError):
        pass
    put(place / "manifest.json", data)
    return read_checkpoint(place)


def run_manifest(data, place):
    put(place / "manifest.json", data)
    found = RunDirectory(place).read_manifest()
    train.recorded_execution(found.get("requested"), place)
    return found


def validations(data, place):
    return read_validations(put(place / "validation.jsonl", data))


def stream(data, place):
    return read_stream(put(place / "stream.jsonl", data), [4, 4])


def streams(data, place):
    given = StreamOptions(
        space="nlp.c0", scale="tiny", data=None, seed=0, steps=5, sampler="uniform"
    )
    path = put(place / "streams", data)
    return parse_streams(str(path), type("Namespace", (), {n: getattr(given, n) for n in FIELDS}))


FIELDS = ("space", "scale", "data", "seed", "steps", "sampler")


def settings(data, place):
    texts = data.decode("utf-8", "replace").split("\n")
    return apply_settings(Settings(), texts[:20])


def recipe(data, place):
    return read_recipe(put(place / "mine.toml", data))


def fairseq(data, place):
    index, _, tokens = data.partition(b"\xfe\xfe")
    put(place / "x.idx", index)
    put(place / "x.bin", tokens)
    found = open_tokens(place / "x")
    for number in range(min(len(found), 5)):
        found[number].sum()
    found.check(100, 2)


def message_seeds(place):
    task = Task(0, 5, TaskKind.FORWARD, 1)
    state = [("param/w", torch.ones(3, 2)), ("optimizer/w/step", 3)]
    inputs = InputMessage(task, (task,), (torch.ones(3, 2), None))
    made = (
        stage_frames(inputs),
        announcement_frames(WorkerId(1), inputs),
        announcement_frames(WorkerId(1), inputs, Place(64, b"handle")),
        release_frames(WorkerId(1)),
        stage_frames(VersionMessage(LayerId(0, 3, 1), 4, state)),
        stage_frames(ContributionMessage("norms", 0, 4, 1, {"3.1": 0.5})),
        launcher_frames(ControlMessage("stop", (7, 9))),
    )
    return [b"\xfe\xfe".join(map(bytes, frames)) for frames in made]


def report_seeds(place):
    body = {"stream": 0, "sequence_id": 3, "loss": 1.5, "bits": "3fc00000"}
    return [msgpack.packb(["loss", 1, body]), msgpack.packb(["end", "it failed"])]


def shard_seeds(place):
    tensors = {"param/w": RawTensor("F32", (2, 2), b"\1" * 16)}
    tensors |= {"buffer/n": RawTensor("I64", (2,), b"\2" * 16)}
    write_shard(place, "seed.safetensors", {"0/a/": tensors})
    return [(place / "seed.safetensors").read_bytes()]


def manifest_seeds(place):
    content = {
        "format": 2, "subnets": 4, "shards": [], "versions": {"0/a": 3}, "history": {"0/a": [1, 3]},
        "scalars": {"0/a/optimizer/w/step": {"float": "3ff0000000000000"}},
        "strides": {"0/a/param/w": [1, 2]}, "losses": [10, 20],
    }  # fmt: skip
    entry = {"file": "stage-0.safetensors", "bytes": 3, "header_blake2b": "00", "crc32": [[1, 5]]}
    return [json.dumps(each).encode() for each in (content, content | {"shards": [entry]})]


def fairseq_seeds(place):
    write_mmap(place / "seed", [[4, 5, 2], [6, 2]], 100)
    index, data = (place / "seed.idx").read_bytes(), (place / "seed.bin").read_bytes()
    header = struct.pack("<8sQQQQQ", b"TNTIDX\0\0", 1, 4, 4, 1, 1)
    lazy = header + np.array([0, 1, 0, 2, 2], "<i8").tobytes()
    return [index + b"\xfe\xfe" + data, lazy + b"\xfe\xfe" + np.array([5, 3], "<i4").tobytes()]


RUN = {"format": 1, "status": "running", "requested": {"stages": 2, "port": 29600, "order": "auto"}}
VALIDATION = (
    '{"sequence_id": 4, "steps": 4, "loss": 1.5, "loss_bits": "3ff8000000000000", '
    '"subnets": [{"choices": [0, 1], "loss": 1.5, "loss_bits": "3ff8000000000000"}]}\n'
)
TARGETS = {
    "messages": Target(message, (TransportError,), message_seeds),
    "reports": Target(report, (TransportError,), report_seeds),
    "checkpoint shards": Target(shard, (LogError,), shard_seeds),
    "checkpoint manifests": Target(manifest, (LogError, ConfigError), manifest_seeds),
    "run manifests": Target(run_manifest, (ConfigError,), texts(json.dumps(RUN))),
    "validations": Target(validations, (LogError,), texts(VALIDATION, VALIDATION * 2)),
    "subnet lists": Target(stream, (ConfigError,), texts("[0, 1]\n[3, 2]\n")),
    "stream files": Target(streams, (ConfigError,), texts('{"space": "nlp.c3", "seed": 1}\n')),
    "settings": Target(settings, (ConfigError,), texts("lr=0.1\nrule.stem=lag(4)")),
    "recipes": Target(recipe, (ConfigError,), texts('lr = 0.1\n[optimizer]\nname = "Adam"\n')),
    "fairseq files": Target(fairseq, (DataError,), fairseq_seeds),
    **LABEL_TARGETS,
    **LOG_TARGETS,
}  # fmt: skip
