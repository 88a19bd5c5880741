"""Losses with parameters or buffers: learned weights and temperatures, a centre, a queue.

Each is trained as the last layer of the chain. A plain loop gives the loss module an optimizer of
its own, as it does every layer.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.config.errors import ConfigError, RunInterruptedError
from naspipe.config.space import Space
from naspipe.store.checkpoints import read_checkpoint
from naspipe.store.compare import compare_runs
from naspipe.worker.blocks.objectives import EndObjective, LayerObjective
from naspipe.worker.checkpoints.restored import from_raw
from tests.equivalence.harness import plain_torch
from tests.faults.helpers import Calm, Ends, interrupt
from tests.keyed_draws import start_draws
from tests.oracle import bits

SEED, LR, MOMENTUM, CLIP = 3, 0.05, 0.9, 0.5
FIELDS = ("label", "size")


def data(seed, number):
    drawn = torch.Generator().manual_seed(seed * 1000 + number)
    x = torch.randn(8, 6, generator=drawn)
    return {"input": x, "label": (x[:, 0] > 0).long(), "size": x.sum(1, keepdim=True)}


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.label, self.size = nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, x):
        return self.label(x), self.size(x)


class Kendall(nn.Module):
    """Weights of two tasks that are learned, as uncertainties."""

    def __init__(self):
        super().__init__()
        self.log_variances = nn.Parameter(torch.zeros(2))

    def forward(self, label, size, wanted_label, wanted_size):
        first, second = self.log_variances
        losses = functional.cross_entropy(label, wanted_label), (size - wanted_size).abs().mean()
        return (-first).exp() * losses[0] + first + (-second).exp() * losses[1] + second


class Centred(nn.Module):
    """A mean of the outputs of all batches so far, in a buffer that each forward replaces."""

    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, label, size, wanted_label, wanted_size):
        loss = functional.cross_entropy(label - self.centre, wanted_label)
        self.centre = 0.9 * self.centre + 0.1 * label.detach().mean(0)
        return loss + size.square().mean()


class Queue(nn.Module):
    """The outputs of the last batches, in a buffer that each forward changes in place."""

    def __init__(self):
        super().__init__()
        drawn = torch.Generator().manual_seed(5)
        self.register_buffer("queue", torch.randn(24, 3, generator=drawn))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))

    def forward(self, label, size, wanted_label, wanted_size):
        scores = label @ self.queue.clone().t() / 0.5
        loss = functional.cross_entropy(torch.cat([label, scores], 1), wanted_label)
        first = int(self.place)
        self.queue[first : first + 8] = label.detach()
        self.place.copy_((self.place + 8) % 24)
        return loss + (size - wanted_size).square().mean()


class Tempered(nn.Module):
    """A temperature that is learned; a norm with statistics; draws, and a frozen part."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.norm = nn.BatchNorm1d(3)
        self.constant = nn.Linear(3, 3).requires_grad_(False)
        self.dropped = nn.Dropout(0.2).eval()

    def forward(self, label, size, wanted_label, wanted_size):
        label = functional.dropout(self.constant(self.norm(label)), 0.1) * self.log_scale.exp()
        return functional.cross_entropy(self.dropped(label), wanted_label) + size.square().mean()


LOSSES = {each.__name__: each for each in (Kendall, Centred, Queue, Tempered)}


def tower(width):
    return lambda: nn.Sequential(nn.Linear(6, width), nn.Dropout(0.3), nn.Linear(width, 6))


def space():
    return npp.Space(
        "tasks",
        [
            npp.Shared("stem", lambda: nn.Linear(6, 6), rule=npp.Lag(1)),
            npp.Block([tower(4), tower(5), nn.Tanh]),
            npp.Block([tower(3), tower(6)]),
            npp.Shared("heads", Heads),
        ],
    )


class Loop:
    """The plain loop, written by hand from docs/reproducibility.md."""

    def __init__(self, loss, passes=1, drops_gradient=False):
        self.loss, self.passes, self.drops_gradient = copy.deepcopy(loss), passes, drops_gradient
        self.layers, self.optimizers, self.losses = {}, {}, []
        self.stems = []

    def _layer(self, label, block, candidate):
        if label not in self.layers:
            start_draws(f"{SEED}/layer/{block}/{candidate}")
            module = self.loss if label == "loss" else space().blocks[block].candidates[candidate]()
            self.layers[label] = module if label == "loss" else module.train()
            trained = [each for each in module.parameters() if each.requires_grad]
            if trained:
                self.optimizers[label] = torch.optim.SGD(trained, lr=LR, momentum=MOMENTUM)
            if label == "stem":
                self.stems.append(copy.deepcopy(module))
        return self.layers[label]

    def step(self, step, choices):
        first, second = choices
        labels = ["stem", f"0.{first}", f"1.{second}", "heads", "loss"]
        candidates = [0, first, second, 0, 0]
        newest = [
            self._layer(label, block, candidate)
            for block, (label, candidate) in enumerate(zip(labels, candidates, strict=True))
        ]
        stem = copy.deepcopy(self.stems[-2] if len(self.stems) > 1 else self.stems[-1])
        for number in range(self.passes):
            batch = data(SEED, step * self.passes + number)
            tensors = (batch["input"],)
            for block, module in enumerate([stem, *newest[1:]]):
                start_draws(f"{SEED}/{step}/{block}/{number}")
                fields = tuple(batch[name] for name in FIELDS) if block == 4 else ()
                found = module(*(each.view_as(each) for each in tensors), *fields)
                tensors = found if isinstance(found, tuple) else (found,)
            self.losses.append(tensors[0].detach())
            (tensors[0] / self.passes if self.passes > 1 else tensors[0]).backward()
        for own, read in zip(newest[0].parameters(), stem.parameters(), strict=True):
            own.grad = read.grad
        if self.drops_gradient:
            for each in self.loss.parameters():
                each.grad = None
        used = [self.layers[label] for label in labels]
        clip(used)
        for label in labels:
            if label in self.optimizers:
                self.optimizers[label].step()
                self.optimizers[label].zero_grad()
        self.stems.append(copy.deepcopy(newest[0]))

    def tensors(self):
        found = {}
        for label, module in self.layers.items():
            for name, each in module.named_parameters():
                found[f"0/{label}/param/{name}"] = each.detach()
                state = self.optimizers[label].state if label in self.optimizers else {}
                for key, value in state.get(each, {}).items():
                    found[f"0/{label}/optimizer/{name}/{key}"] = value
            found |= {f"0/{label}/buffer/{name}": each for name, each in module.named_buffers()}
        return found


@torch.no_grad()
def clip(layers):
    """Of ``clip_global_norm``."""
    total, gradients = 0.0, []
    for layer in layers:
        own = [each.grad for each in layer.parameters() if each.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(own)) if own else 0.0
        total, gradients = total + norm * norm, gradients + own
    factor = CLIP / (total**0.5 + 1e-6)
    if factor < 1.0:
        for each in gradients:
            each.mul_(factor)


def train(loss, path, batches=data, *, steps=16, **more):
    return npp.train(
        space(), batches, loss, steps=steps, seed=SEED, lr=LR, loss_fields=FIELDS,
        optimizer_options={"momentum": MOMENTUM}, clip_global_norm=CLIP, run_dir=path,
        progress=False, **more,
    )  # fmt: skip


def plain(run, loss, passes=1, **more):
    loop = Loop(loss, passes, **more)
    with plain_torch():
        for step, choices in enumerate(run.stream[::passes]):
            loop.step(step, choices)
    return loop


def differences(run, losses, tensors):
    """Names of what has other bits in the run."""
    pairs = zip([int(each.bits, 16) for each in run.directory.read_losses()], losses, strict=True)
    wrong = [
        f"loss {number}"
        for number, (found, loss) in enumerate(pairs)
        if found != int.from_bytes(bits(loss)[2], "little")
    ]
    checkpoint = read_checkpoint(run.directory.checkpoint("final"))
    found = {name: bits(from_raw(raw)) for name, raw in checkpoint.tensors.items()}
    expected = {name: bits(each) for name, each in tensors.items()}
    names = found.keys() | expected.keys()
    return wrong + sorted(name for name in names if found.get(name) != expected.get(name))


def assert_as_plain(run, loss, passes=1):
    loop = plain(run, loss, passes)
    assert not differences(run, loop.losses, loop.tensors())


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("kind", LOSSES)
def test_the_plain_loop_with_verification(tmp_path, kind, stages):
    loss = LOSSES[kind]()
    before = copy.deepcopy(loss.state_dict())
    run = train(loss, tmp_path / "run", stages=stages, verify=4)
    assert_as_plain(run, loss)
    assert run.manifest["verified"] == {"steps": 4}
    assert all(torch.equal(each, before[name]) for name, each in loss.state_dict().items())
    trained = run.shared("loss").state_dict()
    assert any(not torch.equal(each, before[name]) for name, each in trained.items())


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize(
    "execution",
    [{"recompute": True}, {"memory_budget": "2x"}, {"checkpoint_every": 3, "window": 2}],
    ids=["recompute", "budget", "checkpoints"],
)
def test_the_same_bits_however_it_is_carried_out(tmp_path, kind, execution):
    loss = LOSSES[kind]()
    assert_as_plain(train(loss, tmp_path / "run", stages=2, settings=execution), loss)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("groups", [1, 2])
def test_steps_of_several_passes_on_groups(tmp_path, kind, groups):
    loss = LOSSES[kind]()
    run = train(
        loss, tmp_path / "run", steps=8, passes="accumulate:4", stages=groups,
        settings={"groups": groups},
    )  # fmt: skip
    assert_as_plain(run, loss, passes=4)


@pytest.mark.parametrize("kind", LOSSES)
def test_a_resume_on_another_number_of_stages(tmp_path, kind):
    loss, path, how = LOSSES[kind](), tmp_path / "run", {"checkpoint_every": 5, "window": 4}
    with pytest.raises(RunInterruptedError):
        train(loss, path, Ends(data, 9, interrupt, tmp_path / "mark"), stages=2, settings=how)
    run = train(loss, path, Calm(data), resume=True, settings=how)
    assert run.manifest["life"]["generation"] == 1
    assert_as_plain(run, loss)
    whole = train(loss, tmp_path / "whole", Calm(data), stages=2)
    (comparison,) = compare_runs([whole.path, run.path])
    assert comparison.is_identical, str(comparison)


def test_other_weights_to_begin_with_are_another_run(tmp_path):
    loss, path = Kendall(), tmp_path / "run"
    train(loss, path, steps=4)
    with torch.no_grad():
        loss.log_variances.add_(1)
    with pytest.raises(ConfigError, match="weights"):
        train(loss, path, steps=4, resume=True)


def test_a_loop_that_drops_the_gradient_of_the_loss_differs(tmp_path):
    loss = Kendall()
    run = train(loss, tmp_path / "run")
    loop = plain(run, loss, drops_gradient=True)
    assert "0/loss/param/log_variances" in differences(run, loop.losses, loop.tensors())


def test_a_run_that_computes_with_the_users_own_module_is_found(tmp_path, monkeypatch):
    """The user's own module is not trained, so from the second step on losses differ."""
    loss = Kendall()
    monkeypatch.setattr(LayerObjective, "of_layer", lambda self, module: self._make(loss))
    monkeypatch.setattr(EndObjective, "__call__", _without_gradient_of(loss))
    with pytest.raises(npp.NaspipeError, match="differ"):
        train(loss, tmp_path / "run", verify=4)


def _without_gradient_of(loss):
    whole = EndObjective.__call__

    def called(self, *given):
        loss.requires_grad_(False)
        return whole(self, *given)

    return called


# What belongs to a run


def test_metrics_validation_search_and_export(tmp_path):
    loss = Centred()

    def accuracy(label, size, wanted_label, wanted_size):
        return (label.argmax(1) == wanted_label).float().mean()

    run = train(
        loss, tmp_path / "run", stages=2, held_out=data, validate_every=8,
        metrics={"accuracy": accuracy},
    )  # fmt: skip
    assert all(0 <= each <= 1 for each in run.metrics["accuracy"])
    validation = run.validations[-1]
    opened = npp.open_run(run.path, space())
    given = {"data": data, "loss": Centred(), "held_out": data, "progress": False}
    for number, each in enumerate((run, opened)):
        found = npp.search_subnets(
            each, strategy=f"file:{_listed(tmp_path, validation)}", budget=len(validation.subnets),
            calibrate=0, validate=8, name=str(number), verify="2", **given,
        )  # fmt: skip
        assert found.manifest["verified"]["scores"] in (1, 2)  # the first may be the best
        judged = [candidate.scores.loss for candidate in found.candidates]
        assert judged == [subnet.scores["loss"] for subnet in validation.subnets]
    choices = validation.subnets[0].choices
    batches = [data(SEED, number) for number in range(8)]
    layers = [run.shared("stem"), *(run.layer(*each) for each in enumerate(choices))]
    network = nn.Sequential(*layers, run.shared("heads")).eval()
    trained = run.shared("loss")
    expected = 0.0
    for batch in batches:
        with torch.no_grad():
            one = copy.deepcopy(trained)(*network(batch["input"]), *(batch[n] for n in FIELDS))
        expected += float(one) / len(batches)
    assert validation.subnets[0].scores["loss"] == pytest.approx(expected, rel=1e-6)
    assert len(npp.Teacher(run, choices=choices).space) == 4


def _listed(tmp_path, validation):
    path = tmp_path / "subnets.jsonl"
    path.write_text("".join(f"{list(each.choices)}\n" for each in validation.subnets))
    return path


def test_another_loss_with_the_space_of_a_run(tmp_path):
    run = train(Kendall(), tmp_path / "first", steps=2)

    def plain_loss(label, size, wanted_label, wanted_size):
        return functional.cross_entropy(label, wanted_label) + size.square().mean()

    again = npp.train(
        run.space, data, Centred(), steps=2, loss_fields=FIELDS, run_dir=tmp_path / "again"
    )
    assert set(again.shared("loss").state_dict()) == {"centre"}
    other = npp.train(
        run.space, data, plain_loss, steps=2, loss_fields=FIELDS, run_dir=tmp_path / "other"
    )
    assert "loss" not in other.space.labels


def test_weights_to_begin_with_are_those_of_the_network(tmp_path):
    run = train(Kendall(), tmp_path / "first")
    then = train(Kendall(), tmp_path / "then", steps=1, init_from=run)
    moved = run.shared("loss").log_variances - then.shared("loss").log_variances
    assert moved.abs().max() > 0.1


def test_deferred_statistics_of_a_norm_in_the_loss(tmp_path):
    run = train(
        Tempered(), tmp_path / "run", steps=8, passes="accumulate:4", stages=2, verify=4,
        settings={"groups": 2}, recipe={"norms": "deferred"},
    )  # fmt: skip
    assert run.manifest["verified"] == {"steps": 4}
    assert int(run.shared("loss").norm.num_batches_tracked) == 32


def test_a_sandwich(tmp_path):
    run = npp.train(
        space(), data, Taught(), steps=8, loss_fields=FIELDS, passes="sandwich:1", stages=2,
        verify=4, run_dir=tmp_path / "run", progress=False,
    )  # fmt: skip
    assert run.manifest["verified"] == {"steps": 4}
    assert float(run.shared("loss").seen) == 24


class Taught(Kendall):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, *given):
        self.seen = self.seen + 1
        return super().forward(*given)

    def distill(self, label, size, taught, taught_size, wanted_label, wanted_size):
        return self(label, size, taught.softmax(1), taught_size)


# Teachers


def images(seed, number):
    drawn = torch.Generator().manual_seed(seed * 1000 + number)
    return {"input": torch.randn(8, 6, generator=drawn)}


class Contrast(nn.Module):
    """MoCo's queue and DINO's centre of what the teacher returns, and a learned temperature."""

    fields = ()

    def __init__(self):
        super().__init__()
        drawn = torch.Generator().manual_seed(5)
        self.register_buffer("queue", torch.randn(24, 4, generator=drawn))
        self.register_buffer("centre", torch.zeros(4))
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, output):
        return output.square().mean()

    def distill(self, output, taught):
        scores = output @ torch.cat([taught - self.centre, self.queue]).t() * self.log_scale.exp()
        loss = functional.cross_entropy(scores, torch.arange(len(output)))
        self.queue = torch.cat([taught, self.queue])[:24]
        self.centre = 0.9 * self.centre + 0.1 * taught.mean(0)
        return loss


def network():
    torch.manual_seed(1)
    return [nn.Linear(6, 6), nn.Sequential(nn.Tanh(), nn.Linear(6, 6)), nn.Linear(6, 4)]


def plain_contrast(loss, steps, passes, tau=None):
    """With the first network as a frozen teacher, or with one that follows."""
    modules, teacher = network(), network()
    optimizers = [torch.optim.SGD(each.parameters(), lr=LR) for each in [*modules, loss]
                  if [*each.parameters()]]  # fmt: skip
    losses = []
    with plain_torch():
        for step in range(steps):
            for number in range(passes):
                x = images(SEED, step * passes + number)["input"]
                with torch.no_grad():
                    taught = nn.Sequential(*teacher)(x)
                found = loss.distill(nn.Sequential(*modules)(x), taught)
                losses.append(found.detach())
                (found / passes).backward()
            for each in optimizers:
                each.step()
                each.zero_grad()
            for own, source in zip(teacher, modules, strict=True) if tau else ():
                for p, q in zip(own.parameters(), source.parameters(), strict=True):
                    with torch.no_grad():
                        p.lerp_(q, 1.0 - tau)
    labels = [f"{number}.0" for number in range(3)]
    found = {}
    for label, module in zip([*labels, "loss"], [*modules, loss], strict=True):
        found |= {f"0/{label}/param/{n}": each.detach() for n, each in module.named_parameters()}
        found |= {f"0/{label}/buffer/{n}": each for n, each in module.named_buffers()}
    return losses, found


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("kind", ["momentum", "frozen"])
def test_with_a_teacher(tmp_path, kind, stages):
    tau = {"momentum": 0.9, "frozen": None}[kind]
    run = npp.train(
        npp.chain(network()), images, Contrast(), steps=8, seed=SEED, lr=LR,
        recipe={"passes": "accumulate:2"}, stages=stages, verify=4, progress=False,
        teacher=npp.Momentum(tau, lag=0) if tau else npp.Teacher(network()),
        run_dir=tmp_path / "run",
    )  # fmt: skip
    assert not differences(run, *plain_contrast(Contrast(), 8, 2, tau))
    assert run.manifest["verified"] == {"steps": 4}


class Scaled(nn.Module):
    """Of a block of a distillation: a scale that is learned, and a mean of the lessons."""

    fields = ()

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("mean", torch.zeros(()))

    def distill(self, output, taught):
        self.mean = 0.9 * self.mean + 0.1 * taught.mean()
        return (output * self.scale - taught - self.mean).square().mean()


@pytest.mark.parametrize("stages", [1, 2])
def test_blockwise(tmp_path, stages):
    teachers = network()[:2]
    students = [nn.Linear(6, 6), nn.Linear(6, 6)]
    found = npp.distill_blockwise(
        teachers, students, images, loss=Scaled(), last_loss=Scaled(), steps=6, seed=SEED, lr=LR,
        stages=stages, run_dir=tmp_path / "run", execution={"verify": "4"},
    )  # fmt: skip
    for block, run in enumerate(found.blocks):
        losses, tensors = plain_block(teachers, copy.deepcopy(students[block]), block)
        assert not differences(run, losses, tensors)
        assert run.manifest["verified"] == {"steps": 4}
    again = npp.Blockwise.of(
        tmp_path / "run", teachers, students, images, loss=Scaled(), last_loss=Scaled()
    )
    assert len(again.network()) == 2
    with pytest.raises(ConfigError, match=r"^measure loss: .* without parameters and buffers"):
        npp.rate_blocks(again, images, measure="loss")


def plain_block(teachers, student, block):
    loss, losses = Scaled(), []
    optimizers = [torch.optim.SGD(each.parameters(), lr=LR) for each in (student, loss)]
    with plain_torch():
        for step in range(6):
            x = images(SEED, step)["input"]
            with torch.no_grad():
                given = nn.Sequential(*teachers[:block])(x)
                taught = teachers[block](given)
            found = loss.distill(student(given), taught)
            losses.append(found.detach())
            found.backward()
            for each in optimizers:
                each.step()
                each.zero_grad()
    tensors = {f"0/0.0/param/{n}": each.detach() for n, each in student.named_parameters()}
    tensors["0/loss/param/scale"] = loss.scale.detach()
    return losses, tensors | {"0/loss/buffer/mean": loss.mean}


# What is refused before anything is written


class Joined(nn.Module):
    def __init__(self, is_trained):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()), requires_grad=is_trained)
        self.register_buffer("centre", torch.zeros(()))

    def joined(self, outputs, lessons):
        if not self.scale.requires_grad:
            self.centre = self.centre + 1
        return sum((each[0] * self.scale - self.centre).square().mean() for each in outputs)


class OverTheModel(nn.Module):
    def __init__(self, modules):
        super().__init__()
        self.model = nn.Sequential(*modules)

    def forward(self, output):
        penalty = sum(each.abs().sum() for each in self.model.parameters())
        return output.square().mean() + penalty


def refused(tmp_path, match, given, loss, batches=images, **more):
    with pytest.raises(ConfigError, match=match):
        npp.train(
            given if isinstance(given, Space) else npp.chain(given), batches, loss, steps=2,
            run_dir=tmp_path / "run", progress=False, **more,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_a_joined_loss(tmp_path):
    def batches(seed, number):
        return {**images(seed, number), "target": torch.zeros(8)}

    for is_trained, what in (
        (True, "expected no parameters to train"),
        (False, "its buffer centre"),
    ):
        refused(tmp_path, f"^loss Joined: .*{what}", network(), Joined(is_trained), batches)


def test_a_loss_over_the_parameters_of_the_network(tmp_path):
    modules = network()
    loss = OverTheModel(modules)
    loss.fields = ()
    refused(
        tmp_path, r"^loss OverTheModel: .* found model\.0\.weight, .* layer 0\.0,", modules, loss
    )


def test_a_layer_called_loss(tmp_path):
    named = npp.Space("named", [npp.Shared("loss", lambda: nn.Linear(6, 4))])
    refused(tmp_path, "^loss Contrast: expected no layer called 'loss'", named, Contrast())


def test_label_smoothing(tmp_path):
    refused(
        tmp_path, "^label_smoothing=0.1: expected a loss with an attribute", network(), Contrast(),
        recipe={"label_smoothing": 0.1},
    )  # fmt: skip


class Remembers(nn.Module):
    """A tensor in a plain attribute, which no checkpoint would keep."""

    fields = ()

    def __init__(self):
        super().__init__()
        self.scale, self.mean = nn.Parameter(torch.ones(())), torch.zeros(())

    def forward(self, output):
        self.mean = 0.9 * self.mean + 0.1 * output.detach().mean()
        return (output * self.scale - self.mean).square().mean()


def test_state_that_is_no_buffer(tmp_path):
    refused(tmp_path, r"^layer loss \(Remembers\): .* register_buffer", network(), Remembers())
