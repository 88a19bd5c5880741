"""Run directories made by hand: the records a sequential or a pipelined execution leaves."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from naspipe.config.ids import Access, AccessKind, LayerId, SequenceId, StageId, StreamId, Version
from naspipe.store.access_log import AccessLogWriter
from naspipe.store.checkpoints import write_checkpoint_manifest
from naspipe.store.losses import LossWriter
from naspipe.store.run_directory import RunDirectory
from naspipe.store.shards import RawTensor
from tests.store.shards import write_shard

SPACE = {
    "name": "toy",
    "labels": ["stem", "0", "1", "head"],
    "shared": [True, False, False, True],
    "rules": ["frozen", "exact", "exact", "exact"],
    "candidates": [1, 2, 2, 1],
}
CHAINS = [(0, 0, 1, 0), (0, 1, 0, 0), (0, 0, 0, 0), (0, 1, 1, 0)]


def access(
    block: int,
    candidate: int,
    sequence_id: int,
    kind: AccessKind,
    start_ns: int,
    *,
    version: int = -1,
    stage: int = 0,
    length_ns: int = 10,
    **more: Any,
) -> Access:
    return Access(
        LayerId(StreamId(0), block, candidate),
        SequenceId(sequence_id),
        kind,
        Version(version),
        StageId(stage),
        start_ns,
        start_ns + length_ns,
        **more,
    )


def sequential_accesses(
    chains: list[tuple[int, ...]], *, frozen: int = 0, digests: bool = False
) -> list[Access]:
    """One subnet after another, 10 ns a record, without a gap."""
    newest: dict[tuple[int, int], int] = {}
    records: list[Access] = []
    for number, chain in enumerate(chains):
        for block, candidate in enumerate(chain):
            version = newest.get((block, candidate), -1)
            start = 10 * len(records)
            records.append(
                access(block, candidate, number, AccessKind.FORWARD, start, version=version)
            )
        for block, candidate in reversed(list(enumerate(chain))):
            version = newest.get((block, candidate), -1)
            start = 10 * len(records)
            records.append(
                access(block, candidate, number, AccessKind.BACKWARD, start, version=version)
            )
            if block != frozen:
                digest = f"{number:08x}{block:08x}" if digests else ""
                start = 10 * len(records)
                records.append(
                    access(
                        block,
                        candidate,
                        number,
                        AccessKind.WRITE,
                        start,
                        version=number,
                        digest=digest,
                    )
                )
                newest[block, candidate] = number
    return records


@dataclass
class FakeRun:
    """What to write; change it before :meth:`write`."""

    definition: dict[str, Any] = field(default_factory=lambda: {"seed": 1, "data": {"name": "x"}})
    software: dict[str, Any] = field(default_factory=lambda: {"torch": "2.11.0"})
    hardware: dict[str, Any] = field(default_factory=lambda: {"cpu": "zen"})
    status: str = "complete"
    stages: int = 1
    losses: list[tuple[float, str]] = field(
        default_factory=lambda: [(value, float32_bits(value)) for value in (2.0, 1.5, 1.25, 1.0)]
    )
    tensors: dict[str, RawTensor] = field(
        default_factory=lambda: {
            "0/stem/param/weight": RawTensor("F32", (2,), struct.pack("<2f", 0.0, 1.0)),
            "0/0.0/param/weight": RawTensor("F32", (2,), struct.pack("<2f", 0.0, 1.0)),
            "0/0.1/param/weight": RawTensor("BF16", (2,), b"\x00\x00\xc0\x7f"),
            "0/0.1/optimizer/weight/momentum_buffer": RawTensor("BF16", (2,), b"abcd"),
            "0/1.1/buffer/count": RawTensor("I64", (), struct.pack("<q", 7)),
        }
    )
    versions: dict[str, int] = field(
        default_factory=lambda: {"0/0.0": 2, "0/0.1": 3, "0/1.0": 2, "0/1.1": 3, "0/head": 3}
    )
    scalars: dict[str, Any] = field(
        default_factory=lambda: {"0/0.0/optimizer/weight/step": 2, "0/head/optimizer/w/rate": 0.5}
    )
    decided: Any = ()
    recorded_steps: list[dict[str, int]] = field(default_factory=lambda: [{"first": 0, "every": 1}])
    accesses: list[Access] = field(default_factory=lambda: sequential_accesses(CHAINS))

    def write(self, path: Path) -> Path:
        run = RunDirectory(path)
        run.create()
        run.write_manifest(
            {
                "format": 1,
                "status": self.status,
                "definition": self.definition,
                "execution": {"stages": self.stages},
                "environment": {"software": self.software, "hardware": self.hardware},
                "space": SPACE,
                "decided": self.decided,
                "recorded_steps": self.recorded_steps,
                "measured": {},
            }
        )
        with LossWriter(run.losses) as writer:
            for number, (value, bits) in enumerate(self.losses):
                writer.append(0, number, value, bits)
        for stage in range(self.stages):
            with AccessLogWriter(run.access_log(stage)) as log:
                for record in self.accesses:
                    if record.stage == stage:
                        log.append(record)
        shard = write_shard(run.checkpoint(), "stage-0.safetensors", {"": self.tensors})
        write_checkpoint_manifest(
            run.checkpoint(),
            {
                "subnets": len(self.losses),
                "shards": [shard],
                "versions": self.versions,
                "scalars": self.scalars,
            },
        )
        return path


def float32_bits(value: float) -> str:
    return struct.pack(">f", value).hex()
