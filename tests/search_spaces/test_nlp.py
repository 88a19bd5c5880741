"""Translation candidates: padding never leaks, the future never shows, the memory is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import search_spaces
from naspipe.config.blocks import Block
from naspipe.config.space import Space
from search_spaces.nlp.shared_layers import TokenLoss
from tests.search_spaces import chain

SPACE = chain.tiny("nlp.c3")
NAMES = search_spaces.candidate_names("nlp.c3")


def candidate(kind: str, number: int) -> Any:
    torch.manual_seed(number)
    block = next(b for b in SPACE.blocks if isinstance(b, Block) and b.kind == kind)
    return block.candidates[number]()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(torch.int32)


@pytest.mark.parametrize("number", range(24), ids=NAMES)
def test_encoder_candidate_honours_padding(number: int) -> None:
    """Neither more padding nor what stands in it changes the real tokens."""
    module = candidate("encoder", number)
    real = torch.randn(2, 6, 64)
    expected, _ = module(real, torch.zeros(2, 6, dtype=torch.bool))
    for pads, filling in ((1, 0.0), (3, 1e4), (20, -1e4)):
        x = torch.cat([torch.randn(2, pads, 64) + filling, real], 1)
        mask = torch.zeros(2, 6 + pads, dtype=torch.bool)
        mask[:, :pads] = True
        out, passed = module(x, mask)
        assert passed is mask
        torch.testing.assert_close(out[:, pads:], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("number", range(24), ids=NAMES)
def test_decoder_candidate_is_causal_and_honours_padding(number: int) -> None:
    module = candidate("decoder", number)
    y, memory = torch.randn(2, 9, 64), torch.randn(2, 5, 64)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[1, :3] = True
    out, same_memory, same_mask = module(y, memory, mask)
    assert same_memory is memory and same_mask is mask
    for seen in range(1, 9):
        changed = torch.cat([y[:, :seen], torch.randn(2, 9 - seen, 64) * 10], 1)
        assert torch.equal(bits(module(changed, memory, mask)[0][:, :seen]), bits(out[:, :seen]))
    hidden = torch.where(mask.unsqueeze(-1), torch.randn(2, 5, 64) * 1e4, memory)
    torch.testing.assert_close(module(y, hidden, mask)[0], out, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("number", range(24), ids=NAMES)
def test_nothing_but_padding_gives_no_nan(number: int) -> None:
    x = torch.randn(2, 4, 64, requires_grad=True)
    mask = torch.ones(2, 4, dtype=torch.bool)
    encoded, _ = candidate("encoder", number)(x, mask)
    decoded, _, _ = candidate("decoder", number)(x, encoded, mask)
    decoded.sum().backward()
    assert decoded.isfinite().all()
    assert x.grad is not None and x.grad.isfinite().all()


def build_subnet(seed: int, name: str = "nlp.c0") -> tuple[Space, list[Any]]:
    torch.manual_seed(seed)
    space = chain.tiny(name)
    return space, chain.make(space, chain.random_choices(space, seed))


@pytest.mark.parametrize("seed", range(3))
def test_whole_subnet_ignores_padding(seed: int) -> None:
    space, modules = build_subnet(seed)
    batch = chain.text_batch()
    logits = chain.forward(space, modules, batch)
    padded = {
        "source": torch.nn.functional.pad(batch["source"], (5, 0), value=1),
        "previous": torch.nn.functional.pad(batch["previous"], (0, 4), value=1),
    }
    longer = chain.forward(space, modules, padded)[:, : logits.size(1)]
    torch.testing.assert_close(longer, logits, rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        modules[0].tokens.weight[1] = 100.0
    garbage = chain.forward(space, modules, batch)
    torch.testing.assert_close(garbage, logits, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_whole_subnet_is_causal(seed: int) -> None:
    space, modules = build_subnet(seed)
    batch = chain.text_batch()
    logits = chain.forward(space, modules, batch)
    changed = {**batch, "previous": batch["previous"].clone()}
    changed["previous"][:, 3:] = torch.randint(2, 50, changed["previous"][:, 3:].shape)
    assert torch.equal(bits(chain.forward(space, modules, changed)[:, :3]), bits(logits[:, :3]))


def test_decoder_reads_the_source() -> None:
    """Each real source word, and no padding, gets a gradient; other sources give other scores."""
    space, modules = build_subnet(5)
    batch = chain.text_batch()
    logits = chain.forward(space, modules, batch)
    TokenLoss(1)(logits, batch["target"]).backward()
    grad = modules[0].tokens.weight.grad
    used = set(batch["source"].flatten().tolist()) - {1}
    moved = set(grad.abs().amax(1).nonzero().flatten().tolist())
    assert moved == used
    batch["source"][0, 0] = 2 + (batch["source"][0, 0] - 1) % 40
    assert not torch.equal(chain.forward(space, modules, batch)[0], logits[0])


def test_every_decoder_block_passes_a_gradient_to_the_memory() -> None:
    for number in range(24):
        memory = torch.randn(1, 5, 64, requires_grad=True)
        out = candidate("decoder", number)(
            torch.randn(1, 4, 64), memory, torch.zeros(1, 5, dtype=torch.bool)
        )
        out[0].square().sum().backward()
        assert memory.grad is not None and memory.grad.abs().min() > 0


def test_positions_count_from_the_first_real_token() -> None:
    embed = SPACE.blocks[0].candidates[0]()
    x, mask = embed(torch.tensor([[1, 1, 7, 8], [7, 8, 9, 9]]))
    assert mask.tolist() == [[True, True, False, False], [False] * 4]
    assert torch.equal(x[0, 2:], x[1, :2])


def test_signal_keeps_its_size_through_all_blocks() -> None:
    """At the start, 48 residual blocks neither fade nor blow up what enters them."""
    space, modules = build_subnet(7)
    batch, sizes = chain.text_batch(8, 20, 20), []
    passed: tuple[torch.Tensor, ...] = ()
    for block, module in enumerate(modules[:-2]):
        passed = module(*passed, *(batch[field] for field in space.fields(block)))
        sizes.append(passed[0].std().item())
    assert min(sizes) > 0.5 and max(sizes) < 4


def test_loss_is_the_mean_over_real_tokens() -> None:
    logits, target = torch.randn(2, 3, 5), torch.tensor([[2, 3, 1], [4, 1, 1]])
    log = logits.log_softmax(-1)
    expected = -(log[0, 0, 2] + log[0, 1, 3] + log[1, 0, 4]) / 3
    torch.testing.assert_close(TokenLoss(1)(logits, target), expected)
    smoothed = TokenLoss(1, label_smoothing=0.1)(logits, target)
    means = -(log[0, 0].mean() + log[0, 1].mean() + log[1, 0].mean()) / 3
    torch.testing.assert_close(smoothed, 0.9 * expected + 0.1 * means)


def test_a_synthetic_language_is_learned() -> None:
    """The target repeats the source, so 40 steps of uniform subnets already lower the loss."""
    torch.manual_seed(0)
    space, made = chain.tiny("nlp.c3"), {}
    chosen, losses = search_spaces.defaults("nlp.c3", "tiny"), []
    criterion, optimizers = chosen.loss(), {}
    for step in range(40):
        layers = list(enumerate(space.chain(chain.random_choices(space, step))))
        for block, number in layers:
            if (block, number) not in made:
                made[block, number] = space.blocks[block].candidates[number]()
                optimizers[block, number] = torch.optim.Adam(
                    made[block, number].parameters(), lr=chosen.lr
                )
        words = torch.randint(2, 12, (8, 8))
        previous = torch.cat([torch.full((8, 1), 2), words[:, :-1]], 1)
        batch = {"source": words, "previous": previous, "target": words}
        logits = chain.forward(space, [made[layer] for layer in layers], batch)
        loss = criterion(logits, words)
        loss.backward()
        for layer in layers:
            optimizers[layer].step()
            optimizers[layer].zero_grad()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_paper_scale_shapes() -> None:
    info = {"vocabulary": 8000, "padding": 1}
    space = search_spaces.build("nlp.c0", "paper", info)
    with torch.device("meta"):
        modules = chain.make(space, chain.random_choices(space, 1))
        tokens = torch.zeros(192, 64, dtype=torch.int64)
        logits = chain.forward(space, modules, {"source": tokens, "previous": tokens})
    assert logits.shape == (192, 64, 8000)
