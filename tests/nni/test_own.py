"""A user's own model space: what is mapped to what, and what is refused with reason and place."""

from __future__ import annotations

import subprocess
import sys

import nni
import nni.nas.nn.pytorch as nas
import pytest
import torch
from nni.nas.hub.pytorch import NasBench101
from nni.nas.hub.pytorch.modules import NasBench101Cell
from torch import nn

import naspipe
from naspipe.config.blocks import Block
from naspipe.store.labels import Decided
from tests.nni.chain import differing, fixed_model, forward, layers, samples
from tests.nni.spaces import batches, make
from tests.oracle import bits


def test_a_user_s_own_space_is_one_line():
    space = naspipe.from_nni(make("own"), rules={"head": naspipe.Frozen()})
    assert space.labels == ("stem", "0", "1", "2", "3", "4", "head")
    # first; two repetitions and without them; two of three inputs; two widths
    assert space.candidate_counts == (2, 2, 2, 3, 2)
    assert [len(b.candidates) for b in space.blocks if isinstance(b, Block)] == [2, 2, 2, 3, 2]
    assert space.decisions.counts == tuple(map(len, space.decisions.values.values()))
    assert space.blocks[-1].rule == naspipe.Frozen()


def test_labels_say_which_layer_is_which():
    decisions = naspipe.from_nni(make("own")).decisions
    decided = Decided(decisions.decided())
    sample = {"first": "b", "depth": 1, "merge": [0, 2], "width": 6}
    said = decided.of_subnet(decisions.choices_of(sample)).split()
    assert sorted(said) == ["depth=1", "first=b", "merge=[0,2]", "width=6"]
    assert decided.find("first=b") == (0, 1)
    assert decided.find("merge=[0, 2]")[1] == 1


def test_its_chain_is_nnis_fixed_model():
    model_space = make("own")
    space = naspipe.from_nni(model_space)
    x = batches(0, 0)["input"]
    seen = set()
    for sample in samples(space, 12):
        modules = layers(space, sample)
        model = fixed_model(model_space, sample, modules)
        assert bits(forward(modules, x)) == bits(model(x))
        seen.add(space.decisions.choices_of(sample))
    assert len(seen) > 6


def test_layers_start_with_the_modules_own_weights_and_names():
    model_space = make("own")
    space = naspipe.from_nni(model_space)
    module = space.blocks[1].candidates[1]()
    own = model_space.first["b"]
    assert dict(module.named_parameters()).keys() == {"first.b.conv.weight", "first.b.conv.bias"}
    assert bits(module.get_parameter("first.b.conv.weight")) == bits(own.conv.weight)
    assert module.get_parameter("first.b.conv.weight") is not own.conv.weight


def test_layers_of_open_sizes_follow_the_seed_alone():
    space = naspipe.from_nni(make("own"))
    made = []
    for disturbance in range(2):
        torch.manual_seed(disturbance)
        torch.randn(disturbance + 1)
        torch.manual_seed(9)
        made.append(space.blocks[5].candidates[1]())
    weights = [module.get_parameter("narrow.weight") for module in made]
    assert weights[0].shape == (6, 8, 1, 1) and bits(weights[0]) == bits(weights[1])


def test_a_sample_must_be_one_of_the_space():
    decisions = naspipe.from_nni(make("own")).decisions
    sample = decisions.sample_of((0, 0, 1, 2, 0))
    assert sample["depth"] == 1 and sample["merge"] == [1, 2]
    with pytest.raises(naspipe.ConfigError, match=r"label depth: expected one of 0, 1, 2, found 7"):
        decisions.choices_of({**sample, "depth": 7})
    del sample["width"]
    with pytest.raises(naspipe.ConfigError, match=r"label width: .* found nothing"):
        decisions.choices_of(sample)


class Space(nas.ModelSpace):
    """A space whose parts a test gives."""

    def __init__(self, make_body, run):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.body = make_body()
        self.run = run

    def forward(self, x):
        return self.run(self, self.stem(x))


def choice(label, *inner):
    return nas.LayerChoice([nn.Conv2d(8, 8, 1), *inner], label=label)


def straight(self, x):
    return self.body(x)


def data_dependent(self, x):
    return self.body(x) if x.sum() > 0 else x


def tied(self, x):
    return self.body(x) * self.stem.weight.sum()


def returns_a_dict(self, x):
    return {"out": self.body(x)}


def asks_training(self, x):
    x = self.body(x)
    return x * 2 if self.training else x


def drops_out(self, x):
    return nn.functional.dropout(self.body(x), training=self.training)


def draws(self, x):
    return self.body(x) + torch.randn(32)


def draws_for_a_module(self, x):
    return x + self.body(torch.randn(1, 8, 4, 4))


class Unseen(nas.MutableModule):
    def __init__(self):
        super().__init__()
        self.add_mutable(nni.choice("unseen", [1, 2]))
        self.inner = choice("a")

    def forward(self, x):
        return self.inner(x)


class Deciding(nas.ModelSpace):
    """Its forward itself looks at a value, which a module depends on too."""

    def __init__(self):
        super().__init__()
        width = nni.choice("width", [4, 8])
        self.wide = nas.MutableConv2d(3, width, 1)
        self.add_mutable(width)
        self.width = nni.mutable.ensure_frozen(width)

    def forward(self, x):
        return self.wide(x) if self.width == 4 else torch.relu(self.wide(x))


class Continuous(nas.ParametrizedModule):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        return x * self.rate


REFUSED = {
    "nested": (lambda: choice("a", choice("b")), straight, r"Space.body: .* holds another choice"),
    "control flow": (lambda: choice("a"), data_dependent, r"torch.fx can trace.*test_own.py:\d+"),
    "tied": (lambda: choice("a"), tied, r"Space\.stem\.weight is used in two places"),
    "called twice": (lambda: nn.ModuleList([choice("a")]), lambda self, x: self.body[0](
        self.body[0](x)), r"Space\.body\.0\.0\.weight is used in two places"),
    "a dict": (lambda: choice("a"), returns_a_dict, "a tensor or a tuple of tensors"),
    "a list": (lambda: nas.InputChoice(2, 1, "none", label="a"),
               lambda self, x: self.body([x, x]), "Space.body: .*reduction 'none'"),
    "asks training": (lambda: choice("a"), asks_training, "found one that asks self.training; put"),
    "drops out": (lambda: choice("a"), drops_out, "found one that asks self.training; put"),
    "draws": (lambda: choice("a"), draws, r"of shape \[32\] with other values \(as of torch.randn"),
    "draws for a module": (
        lambda: choice("a"), draws_for_a_module, r"of shape \[1, 8, 4, 4\] with other values",
    ),
    "unseen": (Unseen, straight, "no module depends on the label unseen"),
    "continuous": (lambda: Continuous(nni.uniform("rate", 0.0, 1.0)), straight, "label rate"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_mapped_is_refused(name):
    make_body, run, message = REFUSED[name]
    with pytest.raises(naspipe.ConfigError, match=message) as caught:
        naspipe.from_nni(Space(make_body, run))
    assert "\n" not in str(caught.value)


def test_hub_spaces_that_cannot_be_mapped_say_why():
    message = "label cell/final: .*found a constraint.*Cell is made as a whole.*create_fixed_mod"
    with pytest.raises(naspipe.ConfigError, match=message):
        naspipe.from_nni(NasBench101(num_stacks=1, num_modules_per_stack=1))


class WholeCells(nas.ModelSpace):
    """What that message proposes."""

    SAMPLES = (
        {"num_nodes": 3, "op1": "0", "input1": [0], "input2": [1]},
        {"num_nodes": 4, "op1": "1", "op2": "0", "input1": [0], "input2": [0], "input3": [1, 2]},
    )

    def __init__(self):
        super().__init__()
        ops = [lambda width: nn.Conv2d(width, width, 3, padding=1), lambda width: nn.Tanh()]
        cells = [
            NasBench101Cell.create_fixed_module(
                {f"cell/{label}": value for label, value in sample.items()},
                ops, 3, 6, lambda before, width: nn.Conv2d(before, width, 1), 4, 9, "cell",
            )
            for sample in self.SAMPLES
        ]  # fmt: skip
        self.cell = nas.LayerChoice(cells, label="which")
        self.head = nn.Linear(6, 10)

    def forward(self, x):
        return self.head(self.cell(x).mean((2, 3)))


def test_whole_cells_of_nasbench101_are_candidates():
    torch.manual_seed(7)
    model_space = WholeCells()
    space = naspipe.from_nni(model_space)
    assert space.candidate_counts == (2,)
    assert differing(model_space, space, samples(space, 4), batches(0, 0)["input"]) == []


def test_a_forward_that_decides_by_values_is_refused():
    message = r"space Deciding: .* expected nothing for every .* found relu.*'width': 8"
    with pytest.raises(naspipe.ConfigError, match=message):
        naspipe.from_nni(Deciding())


def test_no_model_space():
    with pytest.raises(naspipe.ConfigError, match="found Linear"):
        naspipe.from_nni(nn.Linear(1, 1))


def test_without_nni_the_extra_is_named():
    code = (
        "import sys; sys.modules['nni'] = None\n"
        "import naspipe, naspipe.api.train, naspipe.cli.train\n"
        "try: naspipe.from_nni(object())\n"
        "except naspipe.ConfigError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'naspipe[nni]'" in done.stdout
