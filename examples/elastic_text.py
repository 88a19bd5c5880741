"""A small language model with elastic heads, width and depth, on real text: masked words of
LibreOffice's help are guessed. Trained, searched under a limit of latency, exported cut."""

from text_parts import ClassesFirst, Words
from torch import nn

import naspipe as npp
from naspipe.data import open_data, prepare
from naspipe.elastic import Attention, Depth, Embedding, LayerNorm, Linear, Residual, Sequential

WIDTH, HEADS, LAYERS = 96, 6, 4
WIDE, OF_WIDTH = {"width": [32, 64, 96]}, {"inputs": "width"}
SHAPES = WIDE | {"heads": [2, 4, 6], "depth": [1, 2, 3, 4]}


def words(count):
    """An embedding of each, and of places."""
    return Words(*(Embedding(each, WIDTH, outputs="width") for each in (count, 512)))


def layer(place):
    """Attention and a perceptron; left out where the network is not so deep."""
    attention = Attention(WIDTH, HEADS, 16, heads="heads", **OF_WIDTH)
    wide = Linear(WIDTH, 192, **OF_WIDTH), nn.GELU(), Linear(192, WIDTH, outputs="width")
    parts = (Residual(LayerNorm(WIDTH, **OF_WIDTH), *each) for each in ([attention], wide))
    return Depth(Sequential(*parts), place)


def head(count):
    """A score of each word."""
    return Sequential(Linear(WIDTH, count, **OF_WIDTH), ClassesFirst())


def space(count):
    """Of so many words."""
    return npp.Space("text", [
        npp.Elastic("words", lambda: words(count), WIDE),
        *(npp.Elastic(f"layer{n}", lambda n=n: layer(n), SHAPES) for n in range(LAYERS)),
        npp.Elastic("norm", lambda: LayerNorm(WIDTH, **OF_WIDTH), WIDE),
        npp.Elastic("head", lambda: head(count), WIDE),
    ])  # fmt: skip


def main(run_dir="runs/text", steps=400, stages=2, budget=20, passes="sandwich:2", limit=20.0):
    """Train the largest, the smallest and two more of each step; search; export the best."""
    prepare("en-de-2k")
    data, valid = (
        open_data("masked:en-de-2k", max_tokens=600, split=n) for n in ("train", "valid")
    )
    text, loss = space(data.info["vocabulary"]), nn.CrossEntropyLoss(ignore_index=1)
    how = {"optimizer": "Adam", "lr": 0.001, "stages": stages, "run_dir": run_dir}
    run = npp.train(text, data, loss, steps=steps, passes=passes, **how)
    small = {"held_out": valid, "budget": budget, "limits": {"latency_ms": limit}}
    best = npp.search_subnets(run, data, loss, strategy="random", **small).ranked()[0]
    return run, best, npp.export_subnet(run, best.choices, f"{run_dir}-best", data=data)


if __name__ == "__main__":
    run, best, _ = main()
    print(run.access_order("layer3")[:60], best.scores.loss, best.cost)
