"""The chain of an architecture is NNI's own model of it, whatever the constructors filter."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe
from naspipe.config.errors import NaspipeError
from naspipe.nni import candidates, proof
from naspipe.nni.proof import cover
from tests.nni.chain import differing, samples
from tests.nni.filtered import FILTERED, Cell
from tests.nni.misbuilt import REFUSED_AT_ONCE, REFUSED_BY_BITS, Rescaled
from tests.nni.paths import by_path
from tests.nni.spaces import batches, make

ARCHITECTURES = 200
EXAMPLE = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", FILTERED)
def test_200_architectures_are_nnis_own_models(name):
    torch.manual_seed(1)
    model_space = FILTERED[name]()
    space = naspipe.from_nni(model_space, example=EXAMPLE)
    assert differing(model_space, space, samples(space, ARCHITECTURES), EXAMPLE) == []
    record = space.proof.prove({})
    assert record["layers_compared"] == record["layers"] == sum(space.candidate_counts)


@pytest.mark.parametrize(
    ("name", "count"),
    [("proxyless", 4), ("shufflenet", 2), ("nasbench201", 6), ("autoformer", 20), ("darts", 2),
     ("nds", 4), ("mobilenetv3", 20), ("own", 50)],
)  # fmt: skip
def test_the_hubs_architectures_are_nnis_own_models(name, count):
    """All of 200 each: scripts/check_nni.py."""
    model_space = make(name)
    space = naspipe.from_nni(model_space)
    x = batches(0, 0)["input"]
    assert differing(model_space, space, samples(space, count), x) == []


def test_the_convolution_behind_a_choice_that_vanishes_is_there():
    space = naspipe.from_nni(Cell())
    for number in range(2):
        layers = [
            block.candidates[choice]()
            for block, choice in zip(space.blocks, space.chain((number, 1)), strict=True)
        ]
        kinds = [type(m) for each in layers for m in each.modules() if not list(m.children())]
        assert kinds.count(nn.Conv2d) == 3 + number


@pytest.mark.parametrize("kind", REFUSED_AT_ONCE, ids=lambda kind: kind.__name__)
def test_another_network_than_nnis_is_refused_with_the_place(kind):
    with pytest.raises(naspipe.ConfigError, match=REFUSED_AT_ONCE[kind]) as caught:
        naspipe.from_nni(kind())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", REFUSED_BY_BITS, ids=lambda kind: kind.__name__)
def test_what_looks_alike_must_compute_alike(kind):
    expected = f"space {kind.__name__}: expected the chain to be NNI's own model of .*"
    with pytest.raises(naspipe.ConfigError, match=expected + REFUSED_BY_BITS[kind]):
        naspipe.from_nni(kind(), example=EXAMPLE)


def test_without_an_example_the_first_batch_tells(tmp_path):
    space = naspipe.from_nni(Rescaled())
    with pytest.raises(naspipe.ConfigError, match=r"Rescaled: .* other bits in output"):
        naspipe.train(
            space, batches, nn.CrossEntropyLoss(), steps=2, stages=1, run_dir=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()


class TestByPath:
    """Counterparts by path, as they were found once, are never trained."""

    @pytest.fixture
    def paths(self, monkeypatch):
        monkeypatch.setattr(candidates, "counterparts", by_path)

    @pytest.mark.parametrize("name", ["cell", "vanishing", "around", "nested", "sequences"])
    def test_the_classes_tell(self, paths, name):
        with pytest.raises(NaspipeError):
            naspipe.from_nni(FILTERED[name](), example=EXAMPLE)

    def test_the_bits_tell(self, paths, monkeypatch):
        """Where nobody looks at classes."""
        monkeypatch.setattr(proof, "difference", lambda ours, theirs: "")
        monkeypatch.setattr(proof, "tensor_pairs", _those_that_fit)
        with pytest.raises(naspipe.ConfigError, match="found"):
            naspipe.from_nni(Cell(), example=EXAMPLE)

    def test_the_oracle_tells(self, paths):
        model_space = FILTERED["cell"]()
        space = naspipe.from_nni(model_space)
        assert differing(model_space, space, samples(space, 8), EXAMPLE)


def _those_that_fit(ours, theirs):
    others = dict(theirs.named_parameters())
    for name, tensor in ours.named_parameters():
        if name in others and others[name].shape == tensor.shape:
            yield name, tensor, others[name]


def test_a_proof_needs_an_architecture():
    with pytest.raises(naspipe.ConfigError, match="expected proofs=1 or more, found 0"):
        naspipe.from_nni(Cell(), proofs=0)


def test_an_example_is_what_the_forward_takes():
    with pytest.raises(naspipe.ConfigError, match="an example of input, found 2 tensors"):
        naspipe.from_nni(Cell(), example=(EXAMPLE, EXAMPLE))
    with pytest.raises(naspipe.ConfigError, match=r"that NNI's own model .* compute"):
        naspipe.from_nni(Cell(), example=torch.zeros(4, 2, 6, 6))


def test_fewer_proofs_compare_fewer_layers_and_say_so():
    record = naspipe.from_nni(FILTERED["vanishing"](), example=EXAMPLE, proofs=1).proof.prove({})
    assert record["architectures"] == 1 and record["layers_compared"] < record["layers"]


def test_a_cover_uses_every_layer_and_draws_some_more():
    decisions = naspipe.from_nni(FILTERED["nested"]()).decisions
    found = cover(decisions, 1000)
    used = {key for sample in found.samples for key in enumerate(decisions.choices_of(sample))}
    assert (
        len(used)
        == found.covered
        == found.layers
        == sum(len(block.samples) for block in decisions.blocks)
    )
    assert found == cover(decisions, 1000) and cover(decisions, 12).layers == found.layers
    assert 12 <= cover(decisions, 12).covered < found.covered
