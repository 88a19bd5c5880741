"""A student of a frozen teacher: the bits of a plain loop, on any stages, groups and windows."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import naspipe as npp
from naspipe.config.errors import RunInterruptedError
from naspipe.config.ids import AccessKind
from naspipe.export.pytorch_form import load_pytorch
from naspipe.store.access_log import read_joint_accesses
from naspipe.streams.stream_file import read_stream
from naspipe.worker.blocks.objectives import EndObjective
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, oracle_of, plain_torch, restless
from tests.faults.helpers import Calm, Ends, interrupt, kill
from tests.keyed_draws import keyed_seed
from tests.thinned import long

SEED, LR = 1, 0.02
LOSS = npp.losses.SoftTarget(temperature=2.0, weight=0.5)


def network():
    """Dropout and batch normalisation would show if it were not in evaluation mode."""
    torch.manual_seed(5)
    parts = [nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 10)]
    with plain_torch():
        for _ in range(3):  # statistics of its own, whoever makes it
            parts[1](torch.randn(20, 32))
    return nn.Sequential(*parts)


def plain_loop(run, passes=1, mode="eval", device="cpu", **recipe):
    """Both networks in one process: the teacher without a graph, then the student."""
    teacher = network().train(mode == "train").to(device)
    loop = oracle_of(run.space, SEED, "SGD", LR, {"momentum": 0.9}, device=device, **recipe)
    chains = [run.space.chain(choices) for choices in read_stream(run.directory.stream)]
    with plain_torch():
        for step in range(len(chains) // passes):
            numbers = range(step * passes, (step + 1) * passes)
            batches = [spaces.vectors(SEED, y) for y in numbers]
            with torch.no_grad():
                lessons = [
                    forward(teacher, batch["input"].to(device), step, n)
                    for n, batch in enumerate(batches)
                ]
            taught = iter(lessons)

            def loss(output, target, taught=taught):
                return LOSS.distill(output, next(taught), target)

            pairs = [(chains[y], batch) for y, batch in zip(numbers, batches, strict=True)]
            loop.take(step, pairs, loss, averages_loss=True)
    return loop


def forward(teacher, x, step, number):
    """Block by block under keyed seeds, which only a teacher in training mode notices."""
    for block, module in enumerate(teacher):
        torch.manual_seed(keyed_seed(f"{SEED}/{step}/{block}/{number}/teacher"))
        x = module(x)
    return x


def train(path, stages, passes="one", execution=None, data=spaces.vectors, steps=12, **more):
    return npp.train(
        spaces.mixed(), data, LOSS, steps=steps, seed=SEED, lr=LR,
        optimizer_options={"momentum": 0.9}, stages=stages, run_dir=path,
        recipe={"passes": passes, **more.pop("recipe", {})}, execution=execution,
        teacher=more.pop("teacher", None) or npp.Teacher(network(), window=more.pop("window", 6)),
        **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stages", "window", "execution"),
    [
        long(1, 6, {}),
        (2, 1, {"recompute": True}),
        long(2, 100, {"window": 2}),
        (4, 6, {"checkpoint_every": 5}),
        (2, 6, {"memory_budget": "1x"}),
        (2, 6, {"teacher_window": 1, "teacher_cuts": "joint"}),
        (3, 6, {"order": "model-parallel"}),
    ],
)
def test_bits_of_the_plain_loop(tmp_path, stages, window, execution):
    run = train(tmp_path / "run", stages, execution=execution, window=window)
    assert_same_bits(run, plain_loop(run))
    assert not npp.Run(run.space, tmp_path / "run/teacher").losses


@pytest.mark.parametrize(("groups", "stages"), [long(1, 2), (2, 1), (2, 2)])
def test_passes_and_groups(tmp_path, monkeypatch, groups, stages):
    restless(monkeypatch)
    more = {"clip_global_norm": 1.0, "ema": 0.9}
    run = train(tmp_path / "run", stages, "accumulate:4", {"groups": groups}, recipe=more)
    assert_same_bits(run, plain_loop(run, 4, **more))


@pytest.mark.parametrize("stages", [long(1), 2])
def test_a_teacher_in_training_mode(tmp_path, stages):
    """Its dropout has draws of its own; its norms use their batch, and keep what they had."""
    teacher = npp.Teacher(network(), mode="train")
    run = train(tmp_path / "run", stages, "accumulate:2", teacher=teacher)
    assert_same_bits(run, plain_loop(run, 2, mode="train"))
    assert run.manifest["definition"]["teacher"].endswith("/train")


@pytest.mark.parametrize("is_setting", [long(False), True])
def test_cuts_change_no_bit(tmp_path, is_setting):
    found = []
    for joint in (False, True):
        teacher = npp.Teacher(network(), joint_cuts=joint != is_setting)
        execution = {"teacher_cuts": "joint" if joint else "own"} if is_setting else {}
        run = train(tmp_path / f"{joint}", 3, teacher=teacher, execution=execution)
        assert_same_bits(run, plain_loop(run))
        found.append(npp.Run(run.space, tmp_path / f"{joint}/teacher").manifest["execution"])
    own = run.manifest["execution"]["partitions"]
    assert len(own) == 1 and found[1]["partitions"] != found[0]["partitions"]


def test_a_run_as_a_teacher(tmp_path):
    """One subnet of a trained supernet teaches another supernet."""
    first = npp.train(
        spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=6, seed=3,
        run_dir=tmp_path / "first",
    )  # fmt: skip
    choices = read_stream(first.directory.stream)[-1]
    modules = [first.shared("stem"), *(first.layer(n, c) for n, c in enumerate(choices))]
    parts = nn.Sequential(*modules, first.shared("head"))
    runs = [
        train(tmp_path / name, 2, teacher=npp.Teacher(*network))
        for name, network in (("run", (first, choices)), ("modules", (parts,)))
    ]
    assert runs[0].losses == runs[1].losses
    digests = [run.manifest["definition"]["teacher"] for run in runs]
    assert digests[0] == digests[1] != npp.Teacher(network()).digest


def test_it_is_interrupted_and_goes_on_on_other_stages(tmp_path):
    data = Ends(spaces.vectors, 7, interrupt, tmp_path / "marker")
    with pytest.raises(RunInterruptedError):
        train(tmp_path / "run", 2, data=data, steps=40, window=4, execution={"window": 4})
    run = train(tmp_path / "run", 3, data=Calm(spaces.vectors), steps=40, resume=True)
    assert 0 < run.manifest["life"]["first"][0] == run.manifest["life"]["first"][1] < 40
    assert_same_bits(run, plain_loop(run))


def test_a_stage_is_killed_while_the_teacher_is_ahead(tmp_path):
    data = Ends(spaces.vectors, 9, kill, tmp_path / "marker")
    execution = {"window": 2, "checkpoint_every": 3, "max_restarts": 1}
    run = train(tmp_path / "run", 2, data=data, steps=20, window=9, execution=execution)
    assert run.manifest["life"]["generation"] == 1
    assert_same_bits(run, plain_loop(run))


def test_a_broken_rule_is_seen(tmp_path, monkeypatch):
    """A student that learns another pass's lesson."""
    kept = []

    def stale(objective, outputs, lessons, fields, call=EndObjective.__call__):
        kept.append(lessons)
        return call(objective, outputs, kept[max(0, len(kept) - 2)], fields)

    monkeypatch.setattr(EndObjective, "__call__", stale)
    run = train(tmp_path / "run", 1)
    with pytest.raises(AssertionError, match="differs"):
        assert_same_bits(run, plain_loop(run))


def test_how_far_it_is_ahead_is_a_setting(tmp_path):
    """Of the passes that the first stage has done, how many the student has not yet."""
    found = []
    for window in (2, 9):
        run = train(tmp_path / f"{window}", 2, execution={"teacher_window": window}, steps=40)
        logs = read_joint_accesses([run.directory.path, run.directory.path / "teacher"])
        events = [
            (each.end_ns, number, each.sequence_id)
            for number, log in enumerate(logs)
            for each in log
            if each.stage == 0 and each.kind is (AccessKind.BACKWARD, AccessKind.FORWARD)[number]
        ]
        newest = [-1, -1]
        ahead = []
        for _, number, sequence_id in sorted(events):
            newest[number] = max(newest[number], sequence_id)
            ahead.append(newest[1] - newest[0])
        found.append(max(ahead))
    assert found[0] <= 2 and found[1] <= 9


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: npp.Teacher(network(), window=0), "window of 1 pass or more, found 0"),
        (lambda: npp.Teacher(network(), [0]), "expected choices and ema of a run only"),
        (lambda: npp.Teacher(network(), mode="half"), "expected mode train or eval, found 'half'"),
        (lambda: npp.Teacher([3]), "expected modules, found a int"),
        (lambda: npp.Teacher([]), "expected one module or more"),
    ],
)
def test_no_teacher(make, text):
    with pytest.raises(npp.ConfigError, match=text):
        make()


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"passes": "sandwich:2"}, "expected passes other than sandwich:2"),
        ({"loss": nn.MSELoss()}, "distill"),
        ({"teacher": npp.Teacher([nn.Linear(16, 7)])}, "of shape .*, 10.*found .*, 7"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path, more, text):
    loss, teacher = more.pop("loss", LOSS), more.pop("teacher", npp.Teacher(network()))
    with pytest.raises(npp.ConfigError, match=text) as caught:
        npp.train(
            spaces.mixed(), spaces.vectors, loss, steps=2, run_dir=tmp_path / "run",
            teacher=teacher, recipe=more,
        )  # fmt: skip
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize("setting", [{"teacher_window": 3}, {"teacher_cuts": "joint"}])
def test_settings_of_a_teacher_want_one(tmp_path, setting):
    with pytest.raises(npp.ConfigError, match="expected a teacher with it, found none"):
        npp.train(
            spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=2,
            run_dir=tmp_path / "run", execution=setting,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_weights_of_a_file_and_of_an_export(tmp_path):
    """Three ways to the same teacher."""
    save_file(network().state_dict(), tmp_path / "weights.safetensors")
    torch.manual_seed(6)
    other = nn.Sequential(*(deepcopy(part) for part in network()))
    for parameter in other.parameters():
        parameter.data.zero_()
    filled = npp.Teacher(other, weights=tmp_path / "weights.safetensors")
    assert filled.digest == npp.Teacher(network()).digest
    run = npp.train(
        npp.chain(network()), spaces.vectors, nn.CrossEntropyLoss(), steps=2, run_dir=tmp_path / "r"
    )
    npp.export_subnet(run, (0,) * 5, tmp_path / "out")
    exported = npp.Teacher(load_pytorch(tmp_path / "out"))
    assert exported.digest == npp.Teacher(run).digest
    assert exported.space.fields(0) == ("input",)


def test_weights_that_cannot_be_used(tmp_path):
    (tmp_path / "torn").write_bytes(b"x")
    save_file({"0.weight": torch.zeros(3)}, tmp_path / "wrong")
    for path in ("torn", "wrong", "nowhere"):
        with pytest.raises(npp.ConfigError, match="expected the weights of its modules"):
            npp.Teacher(network(), weights=tmp_path / path)
    bad = network()
    bad[0].weight.data[0, 0] = torch.nan
    with pytest.raises(npp.ConfigError, match="expected finite weights, found others in weight"):
        npp.Teacher(bad)
