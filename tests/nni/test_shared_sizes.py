"""``share="slice"``: the bits of NNI's own one-shot model, and of a plain loop over it."""

from __future__ import annotations

import random
import re
from itertools import product

import nni
import pytest
import torch
from nni.nas.nn import pytorch as nas
from torch import nn

import naspipe
from naspipe.export.pytorch_form import load_pytorch
from naspipe.inputs.subnet_sources import parameter_counts
from naspipe.nni import shared_sizes
from naspipe.store.checkpoints import read_checkpoint
from naspipe.streams.passes import extremes
from naspipe.streams.stream_file import read_stream
from naspipe.worker.checkpoints.restored import from_raw
from tests.nni.one_shot import OneShotLoop, named_of, one_shot, set_sample
from tests.nni.spaces import batches, make
from tests.oracle import bits
from tests.thinned import long

pytestmark = pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # by NNI itself

SPACES = ("autoformer", "mobilenetv3_wide")


@pytest.fixture(autouse=True)
def plain_torch():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def sliced(name, seed=0):
    torch.manual_seed(seed)
    return naspipe.from_nni(make(name), share="slice")


def differing(name, count=4):
    """Architectures of which outputs, gradients or statistics are not those of NNI's model."""
    space, theirs = sliced(name), one_shot(make(name))
    layers = [[make() for make in block.candidates] for block in space.blocks]
    ours = named_of(space, layers)
    parameters = dict(theirs.named_parameters())
    assert ours.keys() == parameters.keys()
    with torch.no_grad():
        for key, tensor in ours.items():
            parameters[key].copy_(tensor)
    draw, wrong = random.Random(0), []
    for _ in range(count):
        sample = {label: draw.choice(of) for label, of in space.decisions.values.items()}
        set_sample(theirs, sample)
        outputs = []
        for forward in (theirs, lambda x, s=sample: forward_of(space, layers, s, x)):
            torch.manual_seed(5)
            outputs.append(forward(batches(0, 0)["input"]))
            outputs[-1].pow(2).sum().backward()
        pairs = [("output", *outputs)]
        pairs += [(key, ours[key].grad, parameters[key].grad) for key in ours]
        stats = named_of(space, layers, "named_buffers")
        pairs += [
            (key, stats[key], tensor) for key, tensor in theirs.named_buffers()
            if not key.endswith("num_batches_tracked")  # which NNI's leave at 0
        ]  # fmt: skip
        wrong += [(sample, key) for key, *pair in pairs if not same(*pair)]
        for tensor in (*ours.values(), *parameters.values()):
            tensor.grad = None
    return wrong


def forward_of(space, layers, sample, x):
    state = (x,)
    chain = space.chain(space.decisions.choices_of(sample))
    for block, candidates, option in zip(space.blocks, layers, chain, strict=True):
        layer = candidates[block.candidate(option)]
        out = block.forward_of(layer, option)(*state)
        state = out if isinstance(out, tuple) else (out,)
    return state[0]


def same(one, other):
    return (one is None) == (other is None) and (one is None or bits(one) == bits(other))


@pytest.mark.parametrize("name", SPACES)
def test_outputs_gradients_and_statistics_are_those_of_nnis_one_shot_model(name):
    assert differing(name) == []


def test_kernels_are_cut_from_the_middle(monkeypatch):
    monkeypatch.setattr(shared_sizes, "_Convolution", ())
    assert differing("mobilenetv3_wide", 2)


def test_there_are_as_many_parameters_as_in_the_largest_architecture():
    space = sliced("autoformer")
    ours = sum(p.numel() for block in space.blocks for p in block.factory().parameters())
    largest, smallest = space.decisions.extremes(lambda *_: 0)
    sample = {label: max(values) for label, values in space.decisions.values.items()}
    assert largest == space.decisions.choices_of(sample)
    assert space.decisions.sample_of(smallest)["embed_dim"] == 16
    with nni.nas.space.model_context(sample):
        theirs = sum(p.numel() for p in make("autoformer").parameters())
    assert ours == theirs


@pytest.mark.parametrize(("name", "share"), [("autoformer", "slice"), ("own", "")])
def test_extremes_are_those_of_all_architectures(name, share):
    torch.manual_seed(0)
    space = naspipe.from_nni(make(name), share=share)
    decisions, count = space.decisions, parameter_counts(space)

    def weight(choices):
        pairs = enumerate(zip(decisions.blocks, choices, strict=True))
        return sum(own.parameters[n] if share else count(at_[at], n) for at, (own, n) in pairs)

    at_ = [n for n, block in enumerate(space.blocks) if not isinstance(block, naspipe.Shared)]
    sizes = {decisions.choices(drawn) for drawn in product(*map(range, decisions.counts))}
    largest, smallest = extremes(space, count)
    assert weight(largest) == max(map(weight, sizes))
    assert weight(smallest) == min(map(weight, sizes))


@pytest.mark.parametrize("stages", [long(1), 2])
def test_steps_leave_the_bits_of_a_loop_over_nnis_one_shot_model(tmp_path, stages):
    space = sliced("autoformer")
    run = naspipe.train(
        space, batches, nn.CrossEntropyLoss(), steps=6, seed=1, lr=0.05, stages=stages,
        optimizer_options={"momentum": 0.9}, run_dir=tmp_path / "run",
    )  # fmt: skip
    checkpoint = read_checkpoint(run.directory.checkpoint("final")).tensors
    drawing = {f"blocks.blocks.{n}": n + 1 for n in range(3)}
    theirs = one_shot(make("autoformer"))
    first = first_weights(space, seed=1)
    with torch.no_grad():
        for key, tensor in theirs.named_parameters():
            tensor.copy_(first[key])
    loop = OneShotLoop(theirs, 0.05, drawing)
    for y, choices in enumerate(read_stream(run.directory.stream)):
        loop.step(1, y, space.decisions.sample_of(choices), batches(1, y))
    found = [int(loss.bits, 16) for loss in run.directory.read_losses()]
    assert found == [int.from_bytes(bits(loss)[2], "little") for loss in loop.losses]
    kept = {key.split("/", 2)[2]: bits(from_raw(raw)) for key, raw in checkpoint.items()}
    assert {key: own for key, own in kept.items() if not key.startswith("buffer/")} == {
        key: own for key, own in loop.tensors().items() if key in kept
    }


def first_weights(space, seed):
    from naspipe.machine.determinism import layer_seed, seed_draws

    found = {}
    for position, block in enumerate(space.blocks):
        seed_draws(layer_seed(seed, position, 0))
        found |= dict(block.factory().named_parameters())
    return found


def test_a_search_and_an_export_have_the_sizes_that_were_chosen(tmp_path):
    space = sliced("autoformer")
    run = naspipe.train(
        space, batches, nn.CrossEntropyLoss(), steps=4, seed=1, stages=2, run_dir=tmp_path / "run",
    )  # fmt: skip
    found = naspipe.search_subnets(
        run, batches, nn.CrossEntropyLoss(), held_out=lambda seed, n: batches(seed + 9, n),
        strategy="random", budget=3, validate=1, seed=1, stages=2,
    )  # fmt: skip
    choices = found.ranked()[0].choices
    done = naspipe.export_subnet(run, choices, tmp_path / "net", data=batches)
    assert done.is_checked
    theirs = naspipe.to_nni(run, choices, data=batches)
    exported, x = load_pytorch(tmp_path / "net").eval(), batches(0, 0)["input"]
    assert bits(exported(x)) == bits(theirs(x))
    sample = space.decisions.sample_of(choices)
    with nni.nas.space.model_context(sample):
        sizes = [p.shape for p in make("autoformer").parameters()]
    assert [p.shape for p in theirs.parameters()] == sizes


class Grouped(nas.ModelSpace):
    """A size that is no part of another: with more channels there are fewer features."""

    def __init__(self):
        super().__init__()
        width = nni.choice("width", [2, 4])
        self.wide = nas.MutableLinear(8, 24 // width)
        self.wider = nas.MutableLinear(8, width)

    def forward(self, x):
        return torch.cat([self.wide(x), self.wider(x)], 1)


def test_what_cannot_be_sliced_is_said():
    with pytest.raises(naspipe.ConfigError, match="expected share='slice' or nothing"):
        naspipe.from_nni(make("own"), share="all")
    with pytest.raises(naspipe.ConfigError, match=r"found none; leave share out"):
        naspipe.from_nni(make("proxyless"), share="slice")
    message = r"expected sizes that are parts of one largest, found Grouped.*wider.weight of shape"
    with pytest.raises(naspipe.ConfigError, match=message) as caught:
        naspipe.from_nni(Grouped(), share="slice")
    assert re.search(r"\[4, 8\] beside \[2, 8\]", str(caught.value))
