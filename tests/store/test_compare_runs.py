"""Comparison: one changed bit anywhere is found and named."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from naspipe.config.errors import ConfigError, LogError
from naspipe.config.ids import AccessKind, Version
from naspipe.store.compare import Comparison, RecordedRun, compare_runs
from naspipe.store.shards import RawTensor
from tests.store.fake_run import CHAINS, FakeRun, float32_bits, sequential_accesses

WEIGHT = "0/0.0/param/weight"


def test_a_comparison_is_true_when_no_bit_differs():
    same = Comparison(Path("runs/one"))
    other = Comparison(Path("runs/two"), "another seed")
    assert same and not other
    assert repr(same) == "<runs/one: IDENTICAL>"
    assert repr([other]) == "[<runs/two: cannot be compared: another seed>]"


def compare(tmp_path: Path, one: FakeRun, other: FakeRun) -> Comparison:
    (comparison,) = compare_runs([one.write(tmp_path / "one"), other.write(tmp_path / "other")])
    return comparison


def test_equal_runs_are_identical(tmp_path: Path) -> None:
    comparison = compare(tmp_path, FakeRun(), FakeRun())
    assert comparison.is_identical and comparison.first is None
    assert str(comparison) == "IDENTICAL"


def test_stages_and_times_may_differ(tmp_path: Path) -> None:
    moved = [
        record._replace(
            stage=record.layer.block // 2,
            start_ns=7 * record.start_ns + 5,
            end_ns=7 * record.end_ns,
        )
        for record in sequential_accesses(CHAINS)
    ]
    other = FakeRun(stages=2, accesses=moved)
    assert compare(tmp_path, FakeRun(), other).is_identical


def test_minus_zero_is_not_zero_in_a_tensor(tmp_path: Path) -> None:
    other = FakeRun()
    other.tensors[WEIGHT] = RawTensor("F32", (2,), struct.pack("<2f", -0.0, 1.0))
    comparison = compare(tmp_path, FakeRun(), other)
    assert not comparison.is_identical
    assert str(comparison).startswith(
        "first difference: final state, last written at step 2, layer 0.0: tensor: param/weight "
        "1 of 2 elements differ, first element 0: bits 00000000 against 80000000\n"
    )


def test_a_nan_is_its_payload_in_a_tensor(tmp_path: Path) -> None:
    other = FakeRun()
    other.tensors["0/0.1/param/weight"] = RawTensor("BF16", (2,), b"\x00\x00\xc1\x7f")
    first = compare(tmp_path, FakeRun(), other).first
    assert first is not None and first.detail.endswith("bits 7fc0 against 7fc1")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0.0, "00000000"), (-0.0, "80000000")),
        ((float("nan"), "7fc00000"), (float("nan"), "7fc00001")),
    ],
)
def test_losses_differ_by_their_bits(
    tmp_path: Path, one: tuple[float, str], other: tuple[float, str]
) -> None:
    runs = [FakeRun(), FakeRun()]
    runs[0].losses[2], runs[1].losses[2] = one, other
    first = compare(tmp_path, *runs).first
    assert first is not None
    assert (first.sequence_id, first.what, first.layer) == (2, "loss", "")
    assert one[1] in first.detail and other[1] in first.detail


def test_absent_state_is_a_difference_on_either_side(tmp_path: Path) -> None:
    other = FakeRun()
    del other.tensors["0/0.1/optimizer/weight/momentum_buffer"]
    first = compare(tmp_path / "a", FakeRun(), other).first
    assert first is not None and (first.layer, first.sequence_id) == ("0.1", 3)
    assert first.detail == "optimizer/weight/momentum_buffer BF16[2] against absent"
    first = compare(tmp_path / "b", other, FakeRun()).first
    assert first is not None and first.detail.endswith("absent against BF16[2]")


@pytest.mark.parametrize(
    ("tensor", "detail"),
    [
        (RawTensor("I32", (2,), bytes(8)), "param/weight F32[2] against I32[2]"),
        (RawTensor("F32", (2, 1), bytes(8)), "param/weight F32[2] against F32[2,1]"),
    ],
)
def test_dtype_and_shape_count(tmp_path: Path, tensor: RawTensor, detail: str) -> None:
    runs = [FakeRun(), FakeRun()]
    runs[0].tensors[WEIGHT] = RawTensor("F32", (2,), bytes(8))
    runs[1].tensors[WEIGHT] = tensor
    first = compare(tmp_path, *runs).first
    assert first is not None and first.detail == detail


def test_versions_and_scalars_count(tmp_path: Path) -> None:
    other = FakeRun()
    other.versions["0/1.0"] = 1
    other.scalars["0/0.0/optimizer/weight/step"] = 2.0
    differences = compare(tmp_path, FakeRun(), other).differences
    assert [(d.sequence_id, d.layer, d.what, d.detail) for d in differences] == [
        (1, "1.0", "version", "2 against 1"),
        (2, "0.0", "scalar", "optimizer/weight/step 2 against 2.0"),
    ]


def test_a_digest_names_the_first_write_that_differs(tmp_path: Path) -> None:
    """Bytes differ from the WRITE of step 1 in block 2 on; the final state shows it later."""
    records = sequential_accesses(CHAINS, digests=True)
    changed = [
        record._replace(digest=record.digest + "x")
        if record.kind is AccessKind.WRITE and (record.sequence_id, record.layer.block) >= (1, 2)
        else record
        for record in records
    ]
    other = FakeRun(accesses=changed)
    other.losses[2] = (1.5, float32_bits(1.5))
    other.tensors[WEIGHT] = RawTensor("F32", (2,), struct.pack("<2f", 5.0, 1.0))
    comparison = compare(tmp_path, FakeRun(accesses=records), other)
    first = comparison.first
    assert first is not None
    assert (first.sequence_id, first.layer, first.what) == (1, "1.0", "written bytes")
    assert str(comparison).splitlines()[1].endswith("first loss that differs: step 2")


def test_where_the_first_loss_differs_the_beginning_did(tmp_path: Path) -> None:
    other = FakeRun()
    other.losses[0] = (1.5, float32_bits(1.5))
    said = str(compare(tmp_path, FakeRun(), other))
    assert "look at what the runs began with: batches, and the weights" in said


def test_digests_on_one_side_only_are_no_difference(tmp_path: Path) -> None:
    with_digests = FakeRun(accesses=sequential_accesses(CHAINS, digests=True))
    assert compare(tmp_path, FakeRun(), with_digests).is_identical


def test_without_digests_the_earliest_of_step_and_layer_is_named(tmp_path: Path) -> None:
    other = FakeRun()
    other.losses[3] = (9.0, float32_bits(9.0))
    other.tensors[WEIGHT] = RawTensor("F32", (2,), struct.pack("<2f", 5.0, 1.0))
    first = compare(tmp_path, FakeRun(), other).first
    assert first is not None and (first.sequence_id, first.layer) == (2, "0.0")


def test_an_exact_layer_has_one_order(tmp_path: Path) -> None:
    """Subnet 1 reads the head before subnet 0 writes it, and so an older version."""
    records = sequential_accesses(CHAINS)
    head = [r for r in records if r.layer.block == 3 and r.kind is not AccessKind.BACKWARD]
    write, read = head[1], head[2]
    assert write.kind is AccessKind.WRITE and read.sequence_id == 1
    early = read._replace(start_ns=write.start_ns - 1, version=-1)
    other = FakeRun(accesses=[early if r == read else r for r in records])
    differences = compare(tmp_path, FakeRun(), other).differences
    assert [(d.sequence_id, d.layer, d.what, d.detail) for d in differences] == [
        (0, "head", "access order", "0B against 1F at place 1"),
        (1, "head", "version read", "0 against -1"),
    ]


def test_the_order_of_writes_counts(tmp_path: Path) -> None:
    records = sequential_accesses(CHAINS)
    writes = [r for r in records if r.layer.block == 3 and r.kind is AccessKind.WRITE]
    swapped = [
        r._replace(sequence_id={1: 2, 2: 1}.get(r.sequence_id, r.sequence_id)) if r in writes else r
        for r in records
    ]
    differences = compare(tmp_path, FakeRun(), FakeRun(accesses=swapped)).differences
    assert ("order of WRITEs", "1B against 2B at place 1") in [
        (d.what, d.detail) for d in differences
    ]


@pytest.mark.parametrize("kind", [AccessKind.FORWARD, AccessKind.WRITE])
def test_a_missing_record_is_a_difference(tmp_path: Path, kind: AccessKind) -> None:
    records = sequential_accesses(CHAINS)
    last = [record for record in records if record.kind is kind][-1]
    fewer = [record for record in records if record != last]
    first = compare(tmp_path, FakeRun(), FakeRun(accesses=fewer)).first
    assert first is not None and first.sequence_id == 3 and "absent" in first.detail


def test_another_definition_cannot_be_compared(tmp_path: Path) -> None:
    other = FakeRun(definition={"seed": 1, "data": {"name": "y"}})
    comparison = compare(tmp_path, FakeRun(), other)
    assert not comparison.is_identical and comparison.first is None
    assert "definition.data.name is 'x' in" in comparison.reason
    assert "'y' in" in comparison.reason


def test_another_stream_cannot_be_compared(tmp_path: Path) -> None:
    paths = [FakeRun().write(tmp_path / name) for name in ("one", "other")]
    (paths[0] / "stream.jsonl").write_text("[0, 1]\n[1, 1]\n")
    (paths[1] / "stream.jsonl").write_text("[0, 1]\n[1, 0]\n")
    (comparison,) = compare_runs(paths)
    assert "different streams: subnet 1 is [1, 1] in" in comparison.reason


def test_an_unfinished_run_cannot_be_compared(tmp_path: Path) -> None:
    comparison = compare(tmp_path, FakeRun(), FakeRun(status="failed"))
    assert "other is not complete: its manifest says 'failed'" in comparison.reason


def test_other_software_and_hardware_are_warnings(tmp_path: Path) -> None:
    other = FakeRun(software={"torch": "2.12.0"}, hardware={"cpu": "zen", "gpu": "none"})
    comparison = compare(tmp_path, FakeRun(), other)
    assert comparison.is_identical
    assert [warning.split(";")[0] for warning in comparison.warnings] == [
        "different software: torch is '2.11.0' against '2.12.0'",
        "different hardware: gpu is absent against 'none'",
    ]


def test_a_missing_access_log_is_said(tmp_path: Path) -> None:
    comparison = compare(tmp_path, FakeRun(), FakeRun(accesses=[]))
    assert "the order of accesses was not compared" in comparison.warnings[0]


def test_a_recorded_step_is_compared_beside_others_that_are_not(tmp_path: Path) -> None:
    """One run has nothing of steps 0 and 1: these may differ, steps 2 and 3 may not."""
    from_2 = [record for record in sequential_accesses(CHAINS) if record.sequence_id >= 2]
    spans = [{"first": 0, "every": 0}, {"first": 2, "every": 1}]
    less = FakeRun(accesses=from_2, recorded_steps=spans)
    comparison = compare(tmp_path / "less", FakeRun(), less)
    assert comparison.is_identical
    assert comparison.warnings[-1].endswith("none from step 0 to 1, all from step 2")
    read = next(at for at, record in enumerate(from_2) if record.layer.block == 3)
    from_2[read] = from_2[read]._replace(version=Version(0))
    other = FakeRun(accesses=from_2, recorded_steps=spans)
    first = compare(tmp_path / "other", FakeRun(), other).first
    assert first is not None and (first.sequence_id, first.what) == (2, "version read")


def test_damage_is_an_error(tmp_path: Path) -> None:
    paths = [FakeRun().write(tmp_path / name) for name in ("one", "other")]
    (paths[1] / "checkpoints" / "final" / "manifest.json").unlink()
    with pytest.raises(ConfigError, match="not a finished checkpoint"):
        compare_runs(paths)
    (paths[1] / "losses.jsonl").write_text("x\n")
    with pytest.raises(LogError, match=r"losses\.jsonl:1"):
        compare_runs(paths)


def test_runs_are_given_one_by_one_or_as_a_list(tmp_path: Path) -> None:
    one, other = (str(FakeRun().write(tmp_path / name)) for name in ("one", "other"))
    assert all(compare_runs(one, other)) and all(compare_runs([one, tmp_path / "other"]))
    said = 'expected two run directories or more, as in naspipe.compare_runs("runs/one"'
    for wrong, found in (((one,), "1"), (([one],), "1"), ((one, 3), "3"), ((), "0")):
        with pytest.raises(ConfigError) as error:
            compare_runs(*wrong)
        assert said in str(error.value) and str(error.value).endswith(f"found {found}")


def test_a_search_is_not_taken_for_a_run(tmp_path: Path) -> None:
    search = FakeRun().write(tmp_path / "run") / "search-1"
    search.mkdir()
    (search / "manifest.json").write_text('{"format": 1, "run": {}, "definition": {}}')
    with pytest.raises(
        ConfigError, match=r"search-1 is a search: expected the run .*/run; naspipe"
    ):
        RecordedRun(search)


def test_three_large_runs_take_seconds(tmp_path: Path) -> None:
    chains = [(0, step % 2, (step // 2) % 2, 0) for step in range(6_000)]
    accesses = sequential_accesses(chains, digests=True)
    assert len(accesses) > 60_000
    paths = [FakeRun(accesses=accesses).write(tmp_path / name) for name in "abc"]
    start = time.monotonic()
    assert all(comparison.is_identical for comparison in compare_runs(paths))
    assert time.monotonic() - start < 20
