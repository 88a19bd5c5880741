"""What all spaces have in common: names, counts, defaults, errors, and no need of torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import search_spaces
from naspipe.config.blocks import Block
from naspipe.config.errors import ConfigError
from naspipe.config.rules import Exact, Frozen, Lag
from tests.search_spaces import chain

COUNTS = {
    "nlp.c0": (48, 96),
    "nlp.c1": (48, 72),
    "nlp.c2": (48, 48),
    "nlp.c3": (48, 24),
    "cv.c1": (32, 48),
    "cv.c2": (32, 24),
    "cv.c3": (32, 12),
}
LARGEST = {"nlp": "nlp.c0", "cv": "cv.c1"}


def test_names() -> None:
    assert search_spaces.names() == tuple(COUNTS)


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("scale", search_spaces.SCALES)
def test_no_scale_changes_blocks_or_candidates(name: str, scale: str) -> None:
    info = {**chain.TEXT, **chain.IMAGES}
    blocks, candidates = COUNTS[name]
    assert search_spaces.build(name, scale, info).candidate_counts == (candidates,) * blocks


@pytest.mark.parametrize("name", COUNTS)
def test_candidates_of_a_smaller_space_are_the_first_of_the_largest(name: str) -> None:
    listed = search_spaces.candidate_names(name)
    assert len(set(listed)) == len(listed) == COUNTS[name][1]
    largest = search_spaces.candidate_names(LARGEST[name.split(".")[0]])
    assert listed == largest[: len(listed)]


@pytest.mark.parametrize("name", COUNTS)
def test_blocks_of_one_kind_have_the_same_candidates(name: str) -> None:
    kinds: dict[str | None, set[int]] = {}
    for block in chain.tiny(name).blocks:
        if isinstance(block, Block):
            kinds.setdefault(block.kind, set()).add(id(block.candidates[0]))
    assert set(kinds) == ({"encoder", "decoder"} if name.startswith("nlp") else {"cell"})
    assert all(len(factories) == 1 for factories in kinds.values())


@pytest.mark.parametrize("name", COUNTS)
def test_one_step_with_the_defaults(name: str) -> None:
    torch.manual_seed(3)
    space, chosen = chain.tiny(name), search_spaces.defaults(name, "tiny")
    modules = chain.make(space, chain.random_choices(space, 3))
    parameters = [parameter for module in modules for parameter in module.parameters()]
    options = dict(chosen.optimizer_options)
    optimizer = getattr(torch.optim, chosen.optimizer)(parameters, lr=chosen.lr, **options)
    batch, criterion = chain.batch_for(name), chosen.loss()
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = criterion(chain.forward(space, modules, batch), batch["target"])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(parameter.grad is not None for parameter in parameters)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["nlp.c0", "cv.c1"])
def test_every_candidate_gives_another_output(name: str) -> None:
    """From one seed, no two candidates of a block agree, in structure or in what they return."""
    torch.manual_seed(0)
    space = chain.tiny(name)
    inputs = {
        "encoder": (torch.randn(2, 20, 64), torch.zeros(2, 20, dtype=torch.bool)),
        "decoder": (
            torch.randn(2, 20, 64),
            torch.randn(2, 5, 64),
            torch.zeros(2, 5, dtype=torch.bool),
        ),
        "cell": (torch.randn(2, 24, 14, 14),),
    }
    for kind in {block.kind for block in space.blocks if isinstance(block, Block)}:
        block = next(b for b in space.blocks if isinstance(b, Block) and b.kind == kind)
        structures, outputs = [], []
        for factory in block.candidates:
            torch.manual_seed(1)
            module = factory()
            out = module(*inputs[str(kind)])
            structures.append(repr(module))
            outputs.append((out[0] if isinstance(out, tuple) else out).detach().flatten())
        assert len(set(structures)) == len(structures)
        table = torch.stack(outputs)
        for row in range(1, len(table)):
            assert (table[row] - table[:row]).abs().amax(1).min() > 1e-3


@pytest.mark.parametrize("name", COUNTS)
def test_no_module_edits_what_it_is_given(name: str) -> None:
    torch.manual_seed(0)
    space, batch = chain.tiny(name), chain.batch_for(name)
    for seed in range(3):
        passed: tuple[torch.Tensor, ...] = ()
        for block, module in enumerate(chain.make(space, chain.random_choices(space, seed))):
            given = (*passed, *(batch[field] for field in space.fields(block)))
            versions = [tensor._version for tensor in given]
            out = module(*given)
            assert [tensor._version for tensor in given] == versions
            passed = out if isinstance(out, tuple) else (out,)


def test_rules_of_shared_layers() -> None:
    assert chain.tiny("cv.c3").rules[0] == Lag(1, over=100, predicts=True)
    assert chain.tiny("cv.c3").rules[-1] == Exact()
    changed = search_spaces.build("cv.c3", "tiny", chain.IMAGES, {"stem": Frozen()})
    assert changed.rules[0] == Frozen()
    with pytest.raises(ConfigError, match=r"shared layer of space cv\.c3 'stern': .* stem, head"):
        search_spaces.build("cv.c3", "tiny", chain.IMAGES, {"stern": Frozen()})


def test_lag_layers_keep_no_buffers() -> None:
    """What a forward writes cannot lag."""
    for name in COUNTS:
        for block in chain.tiny(name).blocks:
            if isinstance(block.rule, Lag):
                assert not list(block.candidates[0]().buffers())


def test_errors_name_what_exists_closest_first() -> None:
    with pytest.raises(ConfigError, match=r"'nlp\.c4': expected one of nlp\.c"):
        search_spaces.build("nlp.c4", "tiny", chain.TEXT)
    with pytest.raises(ConfigError, match="'smal': expected one of small, tiny, paper"):
        search_spaces.defaults("nlp.c0", "smal")
    with pytest.raises(ConfigError, match="found padding; vocabulary is missing"):
        search_spaces.build("nlp.c0", "tiny", {"padding": 1})


def test_specifications_need_no_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import search_spaces as s\n"
        "info = dict(vocabulary=9, padding=1, channels=1, height=8, width=8, classes=2)\n"
        "for name in s.names():\n"
        "    for scale in s.SCALES:\n"
        "        s.build(name, scale, info); s.defaults(name, scale)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
