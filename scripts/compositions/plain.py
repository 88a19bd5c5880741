"""The plain loop of a case: one step after the other, in one process, with nothing of the runtime.

The loops themselves are those of ``tests``, which are written from the public rules of
``docs/reproducibility.md``. Here they are given what a case names, and what is around them: rates,
parameter groups, teachers, views, blocks. Nothing but the networks, the data and the losses is
naspipe's.
"""

from __future__ import annotations

import copy
import fnmatch
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from scripts.compositions import networks
from scripts.compositions.cases import Case, get, recipe_of, steps_of
from scripts.compositions.networks import LR, PARAMETER_GROUPS
from tests.equivalence.harness import oracle_of, plain_torch
from tests.equivalence.plain_pairs import PlainPairs
from tests.equivalence.plain_paths import PlainBlock
from tests.equivalence.probing_loop import train_probed
from tests.keyed_draws import keyed_seed, start_draws
from tests.oracle import PlainLoop, bits

Found = dict[str, str]
"""A digest of every loss and every tensor that a run left, by a name that says where it is."""

Stream = Sequence[tuple[int, ...]]


def digest_of(value: Any) -> str:
    """Of a tensor's bits, with its shape and dtype; of anything else, of its text."""
    if isinstance(value, torch.Tensor):
        kind, shape, raw = bits(value)
        return blake2b(f"{kind}{shape}".encode() + raw, digest_size=8).hexdigest()
    return repr(value)


def found_in(
    place: str, space: npp.Space, tensors: Mapping[Any, Any], losses: Sequence[Any]
) -> Found:
    """What a loop left."""
    found = {f"{place}loss/{number:04}": loss_text(loss) for number, loss in enumerate(losses)}
    for (block, candidate, name), value in tensors.items():
        found[f"{place}{space.label(block, candidate)}/{name}"] = digest_of(value)
    return found


def loss_text(loss: torch.Tensor) -> str:
    """The bits of a loss as the log has them."""
    return f"{int.from_bytes(bits(loss)[2], 'little'):x}"


def rate_of(case: Case, steps: int) -> Callable[[int], float]:
    """The rate of each step."""
    name = get(case, "recipe.schedule")
    warmup, first = get(case, "recipe.warmup_steps"), get(case, "recipe.restart_steps")
    growth = get(case, "recipe.restart_factor")

    def rate(step: int) -> float:
        if name.startswith("table"):
            pairs = [each.split(":") for each in name[6:-1].split(",")]
            return LR * [float(f) for start, f in pairs if int(start) <= step][-1]
        if step < warmup:
            return LR * (step + 1) / warmup
        place = step - warmup
        if first:
            length = first
            while place >= length:
                place, length = place - length, length * growth
            if name == "linear":
                return LR * (1.0 - place / length)
            return LR * (1.0 + math.cos(math.pi * place / length)) / 2
        progress = place / max(1, steps - warmup)
        if name == "linear":
            return LR * (1.0 - progress)
        if name == "cosine":
            return LR * 0.5 * (1.0 + math.cos(math.pi * progress))
        if name == "inverse_sqrt":
            return LR * math.sqrt(max(1, warmup) / (place + max(1, warmup)))
        return LR

    return rate


def split_of(case: Case, space: npp.Space) -> Callable[[int, nn.Module], Any] | None:
    """Groups of parameters as torch has them; the first that matches a parameter has it."""
    groups = PARAMETER_GROUPS[get(case, "parameter_groups")]
    if not groups:
        return None

    def matches(pattern: str, name: str, owner: nn.Module) -> bool:
        if pattern == "bias":
            return name.rpartition(".")[2] == "bias"
        if pattern == "norm":
            return type(owner).__name__.endswith(("Norm", "Norm1d", "Norm2d"))
        return fnmatch.fnmatchcase(name, pattern)

    def split(block: int, module: nn.Module) -> list[dict[str, Any]]:
        label = space.label(block, 0)  # no pattern here names a candidate
        own: list[list[nn.Parameter]] = [[] for _ in range(len(groups) + 1)]
        for prefix, owner in module.named_modules():
            for key, parameter in owner.named_parameters(recurse=False):
                name = ".".join(part for part in (label, prefix, key) if part)
                patterns = (
                    [each["match"]] if isinstance(each["match"], str) else each["match"]
                    for each in groups
                )
                number = next(
                    (
                        n
                        for n, own_ in enumerate(patterns)
                        if any(matches(p, name, owner) for p in own_)
                    ),
                    len(groups),
                )
                own[number].append(parameter)
        options = [{k: v for k, v in each.items() if k != "match"} for each in groups] + [{}]
        return [
            {"params": parameters, **option}
            for parameters, option in zip(own, options, strict=True)
            if parameters
        ]

    return split


def loop_of(case: Case, space: npp.Space, seed: int, steps: int) -> PlainLoop:
    """A plain loop with the recipe of a case."""
    recipe = recipe_of(case)
    known = ("clip_layer_norm", "clip_global_norm", "ema", "nonfinite", "norms", "reduction")
    return oracle_of(
        space, seed, recipe.get("optimizer", "SGD"), rate_of(case, steps),
        networks.optimizer_options(case), bf16=recipe.get("precision") == "bf16",
        split=split_of(case, space), **{key: recipe[key] for key in known if key in recipe},
    )  # fmt: skip


def how_passes_average(case: Case) -> dict[str, bool]:
    """As ``PlainLoop.take`` is told."""
    kind, _, rest = get(case, "recipe.passes").partition(":")
    average = rest.partition(":")[2]
    return {
        "averages_loss": kind == "accumulate" or average == "passes",
        "averages_users": average == "users",
        "weighs_items": get(case, "recipe.weight") == "items",
    }


@contextmanager
def plainly(case: Case) -> Iterator[None]:
    """Deterministic algorithms, and the threads of the definition."""
    with plain_torch():
        torch.set_num_threads(get(case, "recipe.threads"))
        yield


def results(case: Case, streams: Mapping[str, Stream]) -> Found:
    """What the plain loop of a case leaves.

    Args:
        case: the definition; its execution is not looked at.
        streams: the choices of each pass, by the place of the run that recorded them.
    """
    with plainly(case):
        return {
            "supernet": _supernets, "teacher": _taught, "momentum": _followed,
            "blockwise": _blockwise, "mixed": _mixed,
        }[case["family"]](case, streams)  # fmt: skip


def check_stream(case: Case, space: npp.Space, seed: int, stream: Stream) -> None:
    """Draw the stream a second time, where a page says how.

    Raises:
        AssertionError: when the run trained other subnets.
    """
    name, kind = get(case, "sampler"), get(case, "recipe.passes").partition(":")[0]
    if (
        name == "greedy"
        or space.is_elastic
        or kind == "sandwich"
        or get(case, "recipe.probes") != "none"
    ):
        return
    passes = steps_of(case).passes
    per_step = passes if kind in ("subnets", "fair") else 1
    drawn = drawn_stream(name, space.candidate_counts, seed, len(stream) // passes * per_step)
    expected = [each for each in drawn for _ in range(passes // per_step)]
    assert list(stream) == expected, f"a stream of {name}: {stream[:6]}, not {expected[:6]}"


def drawn_stream(name: str, counts: Sequence[int], seed: int, length: int) -> list[tuple[int, ...]]:
    """Subnets as docs/reproducibility.md draws them."""
    kind, _, window = name.partition(":")
    columns = []
    for block, count in enumerate(counts):
        draws = np.random.RandomState([crc32(kind.encode()), block, seed])
        column: list[int] = []
        free, waiting = list(range(count)), []
        while len(column) < length:
            if kind == "fair":
                column += draws.permutation(count).tolist()
                continue
            fraction = draws.random_sample()
            if kind == "uniform":
                column.append(int(fraction * count))
                continue
            column.append(free.pop(int(fraction * len(free))))
            waiting.append(column[-1])
            if len(waiting) > min(int(window), count - 1):
                free.append(waiting.pop(0))
        columns.append(column[:length])
    return [tuple(row) for row in zip(*columns, strict=True)] if columns else [()] * length


def _passes(case: Case, space: npp.Space, data: Any, seed: int, stream: Stream) -> Iterator[Any]:
    """Of each step its number and its passes, each of them choices and a batch."""
    steps = steps_of(case)
    shares = steps.shares_batch
    for step in range(len(stream) // steps.passes):
        numbers = range(step * steps.passes, (step + 1) * steps.passes)
        yield step, [(space.chain(stream[y]), data(seed, step if shares else y)) for y in numbers]


def _supernets(case: Case, streams: Mapping[str, Stream]) -> Found:
    found: Found = {}
    for number, (place, stream) in enumerate(sorted(streams.items())):
        space, seed = networks.space_of(case), get(case, "seed") + 7 * number
        data, loss = networks.Batches(case, 100_000 * number), networks.loss_of(case)
        if smoothing := get(case, "recipe.label_smoothing"):
            loss = nn.CrossEntropyLoss(label_smoothing=smoothing)
        check_stream(case, space, seed, stream)
        loop = loop_of(case, space, seed, get(case, "steps"))
        if (probes := get(case, "recipe.probes")) != "none":
            passes, name = get(case, "recipe.passes"), get(case, "sampler")
            train_probed(loop, space, data, loss, stream, probes, passes, seed, sampler=name)
        else:
            how: dict[str, Any] = how_passes_average(case)
            if get(case, "recipe.passes").startswith("sandwich"):
                how["distill"] = _learn_softmax
            for step, passes in _passes(case, space, data, seed, stream):
                loop.take(step, passes, loss, **how)
        found |= found_in(place, space, loop.tensors(), loop.losses)
    return found


def _learn_softmax(output: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output, taught.softmax(1))


def _taught(case: Case, streams: Mapping[str, Stream]) -> Found:
    ((place, stream),) = streams.items()
    space, seed = networks.space_of(case), get(case, "seed")
    data, loss = networks.Batches(case), networks.loss_of(case)
    check_stream(case, space, seed, stream)
    teacher, mode = networks.teacher_modules(), get(case, "teacher.mode")
    for module in teacher:
        module.train(mode == "train").requires_grad_(False)
    loop = loop_of(case, space, seed, get(case, "steps"))
    is_bf16 = get(case, "recipe.precision") == "bf16"
    for step, passes in _passes(case, space, data, seed, stream):
        lessons = []
        for number, (_, batch) in enumerate(passes):
            x = batch["input"]
            for block, module in enumerate(teacher):
                start_draws(f"{seed}/{step}/{block}/{number}/teacher")
                kept = copy.deepcopy(module.state_dict())
                with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
                    x = module(x)
                module.load_state_dict(kept)
            lessons.append(_lesson(case, loss, x))
        loop.take(step, passes, loss, lessons=lessons, **how_passes_average(case))
    return found_in(place, space, loop.tensors(), loop.losses)


def _lesson(case: Case, loss: Any, scores: torch.Tensor) -> torch.Tensor:
    if not (top := get(case, "teacher.top")):
        return scores
    scores = scores.float()
    rows = [
        sorted(range(len(row)), key=lambda n, row=row: (-row[n], n))[:top]
        for row in scores.tolist()
    ]
    classes = torch.tensor(rows)
    return torch.stack([scores.gather(-1, classes), classes.float()], -2)


class _Teacher:
    """A momentum teacher: a copy of each of the student's layers, which follows it."""

    def __init__(self, case: Case, space: npp.Space, loop: PlainLoop, steps: int) -> None:
        self.case, self.space, self.loop, self.steps = case, space, loop, steps
        self.tau = _value(case, "momentum.tau", 0.9)
        self.end = get(case, "momentum.end")
        self.lag = _value(case, "momentum.lag", 1)
        self.mode = _value(case, "momentum.mode", "train")
        self.buffers = _value(case, "momentum.buffers", "own")
        self.count = len(space) - (get(case, "momentum.without") is not None)
        self.given = momentum_network(case)
        self.layers: dict[tuple[int, int], nn.Module] = {}
        self.history: dict[tuple[int, int], list[tuple[int, nn.Module]]] = defaultdict(list)
        self.seen: list[Any] = []

    def layer(self, pair: tuple[int, int]) -> nn.Module:
        """The newest version."""
        if pair not in self.layers:
            source = self.given[pair[0]] if self.given else self.loop.layer(*pair)
            made = copy.deepcopy(source).train(self.mode == "train").requires_grad_(False)
            self.layers[pair] = made
            self.history[pair].append((-1, copy.deepcopy(made)))
        return self.layers[pair]

    def lesson(self, step: int, number: int, choices: Sequence[int], batch: Any) -> torch.Tensor:
        """What it makes of a batch, as it was ``lag`` steps ago."""
        state = ()
        is_bf16 = get(self.case, "recipe.precision") == "bf16"
        for block, pair in enumerate(self.loop.layers_of(choices)[: self.count]):
            self.layer(pair)
            module = [each for y, each in self.history[pair] if y <= step - 1 - self.lag or y < 0][
                -1
            ]
            start_draws(f"{get(self.case, 'seed')}/{step}/{block}/{number}/teacher")
            kept = PlainLoop.begin_statistics(module) if self.mode == "train" else []
            call = self.loop.call(module, block, choices[block])
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
                inputs = [t.view_as(t) for t in state]
                out = call(*inputs, *(batch[name] for name in self.space.fields(block)))
            statistics = PlainLoop.end_statistics(module, kept)
            self.seen += [(pair, place, mean, var) for _, place, mean, var in statistics]
            state = out if isinstance(out, tuple) else (out,)
        return state[0]

    @torch.no_grad()
    def follow(self, step: int, passes: Sequence[Any]) -> None:
        """Move the layers that the step's passes used towards the student's."""
        tau = self.tau
        if self.end is not None:
            falls = 0.5 * (1.0 + math.cos(math.pi * step / max(1, self.steps)))
            tau = self.end - (self.end - self.tau) * falls
        pairs = {p for choices, _ in passes for p in self.loop.layers_of(choices)[: self.count]}
        for pair in sorted(pairs):
            if get_rule(self.space, pair[0]) == "frozen":
                continue
            mine, its = self.layer(pair), self.loop.layer(*pair)
            others = dict(its.named_parameters())
            for name, p in mine.named_parameters():
                p.lerp_(others[name], 1.0 - tau)
            if self.buffers != "own":
                others = dict(its.named_buffers())
                for name, b in mine.named_buffers():
                    if self.buffers == "averaged" and b.is_floating_point():
                        b.lerp_(others[name], 1.0 - tau)
                    else:
                        b.copy_(others[name])
        for pair, place, mean, var in self.seen if self.buffers == "own" else ():
            norm = [*self.layers[pair].modules()][place]
            norm.num_batches_tracked += 1
            norm.running_mean.mul_(1 - norm.momentum).add_(mean, alpha=norm.momentum)
            norm.running_var.mul_(1 - norm.momentum).add_(var, alpha=norm.momentum)
        self.seen.clear()
        for pair in pairs:
            self.history[pair].append((step, copy.deepcopy(self.layers[pair])))

    def tensors(self) -> dict[tuple[int, int, str], torch.Tensor]:
        """Its parameters and buffers."""
        found = {}
        for (block, candidate), module in self.layers.items():
            for name, p in module.named_parameters():
                found[block, candidate, f"param/{name}"] = p
            for name, b in module.named_buffers():
                found[block, candidate, f"buffer/{name}"] = b
        return found


def get_rule(space: npp.Space, block: int) -> str:
    """The text of a block's rule."""
    return str(space.rules[block])


def _value(case: Case, key: str, usual: Any) -> Any:
    value = get(case, key)
    return usual if value is None else value


def momentum_network(case: Case) -> list[nn.Module]:
    """Modules that a momentum teacher begins with; none where it is a copy of the student."""
    if get(case, "momentum.network") == "copy":
        return []
    space = networks.space_of(case)
    blocks = space.blocks[: len(space.blocks)]
    torch.manual_seed(11)
    return [block.candidates[0]() for block in blocks]


def momentum_space(case: Case) -> npp.Space:
    """The student's, with a predictor behind it where the teacher has none."""
    space = networks.space_of(case)
    if get(case, "momentum.without") is None:
        return space
    predictor = npp.Shared("predictor", lambda: nn.Linear(networks.CLASSES, networks.CLASSES))
    return npp.Space("predicted", [*space.blocks, predictor])


def views_of(case: Case) -> Any:
    """The data of a case, as views where it names some."""
    data = networks.Batches(case)
    if not (views := get(case, "views")):
        return data
    return npp.Views(
        data, networks.shifted, views=views, batches=get(case, "views.batches"),
        local=get(case, "views.local"), local_transform=networks.halved,
    )  # fmt: skip


def _plain_view(case: Case, seed: int, number: int) -> dict[str, torch.Tensor]:
    """The batch of a pass, by the rule of the page."""
    data = networks.Batches(case)
    if not (views := get(case, "views")):
        return data(seed, number)
    batches = get(case, "views.batches")
    passes = (views + get(case, "views.local")) * batches
    step, place = divmod(number, passes)
    view, micro = divmod(place, batches)
    sample = step * batches + micro
    batch = data(seed, sample)
    draws = torch.Generator().manual_seed(keyed_seed(f"{seed}/view/{sample}/{view}"))
    transform = networks.shifted if view < views else networks.halved
    return {**batch, "input": transform(batch["input"], draws, view)}


def _followed(case: Case, streams: Mapping[str, Stream]) -> Found:
    stream = streams[""]
    space, seed, loss = momentum_space(case), get(case, "seed"), networks.loss_of(case)
    check_stream(case, space, seed, stream)
    loop = loop_of(case, space, seed, get(case, "steps"))
    teacher = _Teacher(case, space, loop, get(case, "steps"))
    views, batches = get(case, "views"), get(case, "views.batches")
    count = views * batches if views else None
    for step, passes in _passes(case, space, partial(_plain_view, case), seed, stream):
        lessons = [
            teacher.lesson(step, number, choices, batch)
            for number, (choices, batch) in enumerate(passes[:count])
        ]
        if get(case, "momentum.loss") == "joint":
            loop.take_joined(step, passes, loss, lessons)
        else:
            learned = lessons
            if views:
                shift = batches if views > 1 else 0
                learned = [
                    lessons[(n + shift) % len(lessons) if n < len(lessons) else n % len(lessons)]
                    for n in range(len(passes))
                ]
            loop.take(step, passes, loss, lessons=learned, **how_passes_average(case))
        teacher.follow(step, passes[:count])
    found = found_in("", space, loop.tensors(), loop.losses)
    return found | found_in("teacher/", space, teacher.tensors(), ())


def block_teachers(case: Case) -> list[nn.Module]:
    """The blocks of a teacher."""
    count = 3 if case["family"] == "mixed" else get(case, "blockwise.blocks")
    modules = networks.trained_network(*("batchnorm", "layernorm", "dropout")[: count - 1])
    for module in modules:
        module.eval().requires_grad_(False)
    return modules


def block_students(case: Case) -> list[Any]:
    """A student for each of them."""
    kind, count = get(case, "blockwise.students"), get(case, "blockwise.blocks")
    if kind == "modules":
        torch.manual_seed(3)
        made = [networks.LAYERS["linear"](), networks.LAYERS["batchnorm"]()]
        return [*made[: count - 1], networks.head("linear")]

    def choice(*names: str) -> npp.Block:
        return npp.Block([networks.LAYERS[name] for name in names])

    depth = 2 if kind == "wide" else 1
    spaces = [
        npp.Space(f"student{n}", [choice("linear", "batchnorm", "dropout") for _ in range(depth)])
        for n in range(count - 1)
    ]
    last = npp.Shared("last", partial(networks.head, "layernorm"))
    return [*spaces, npp.Space(f"student{count - 1}", [choice("linear", "absent"), last])]


def _through(modules: Sequence[nn.Module], x: torch.Tensor, is_bf16: bool = False) -> torch.Tensor:
    for module in modules:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
            x = module(x)
    return x


def _blockwise(case: Case, streams: Mapping[str, Stream]) -> Found:
    found: Found = {}
    teachers, students = block_teachers(case), block_students(case)
    data, own = networks.Batches(case), get(case, "blockwise.loss") == "own"
    is_bf16 = get(case, "recipe.precision") == "bf16"
    for number, student in enumerate(students):
        space = student
        if not isinstance(student, npp.Space):
            parts = list(student) if isinstance(student, nn.Sequential) else [student]
            space = npp.chain(parts)
        seed, stream = get(case, "seed") + number, streams[f"block-{number}/"]
        check_stream(case, space, seed, stream)
        loop = loop_of(case, space, seed, get(case, "steps"))
        loop.fields = [("given",), *[()] * (len(space) - 1)]
        loss: Any = nn.CrossEntropyLoss() if number == len(students) - 1 else _Mean()
        if own:
            loss = networks.Squares()

        def batches(_: int, y: int, number: int = number) -> dict[str, torch.Tensor]:
            x = data(get(case, "seed"), y)["input"]
            given = _through(teachers[:number], x, is_bf16)
            return {
                "given": given,
                "lesson": _through(teachers[number : number + 1], given, is_bf16),
            }

        for step, passes in _passes(case, space, batches, seed, stream):
            lessons = [batch["lesson"] for _, batch in passes]
            loop.take(step, passes, loss, lessons=lessons, **how_passes_average(case))
        found |= found_in(f"block-{number}/", space, loop.tensors(), loop.losses)
    return found


class _Mean:
    """The default of a student block: the mean square of the difference."""

    fields = ()

    def distill(self, output: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
        """The loss of one pass."""
        return functional.mse_loss(output, taught)


EDGE_OPTIONS = {"momentum": 0.9, "nesterov": True, "weight_decay": 4e-5}
TABLES = [[[900.0, 1200.0, 40.0], [700.0, 10.0]], [[500.0, 0.0, 800.0]], [[30.0, 60.0], [240.0]]]
REFERENCES = [1500.0, 700.0, 350.0]


def edge_layers() -> list[list[list[networks.Factory]]]:
    """Of each block, of each layer, its candidates."""
    layers = networks.LAYERS
    return [
        [
            [layers["linear"], layers["batchnorm"], layers["dropout"]],
            [layers["linear"], nn.Identity],
        ],
        [[layers["linear"], nn.Identity, layers["layernorm"]]],
        [[layers["linear"], layers["dropout"]], [partial(networks.head, "linear")]],
    ]


def edge_chains(case: Case) -> list[tuple[list[list[networks.Factory]], Any, float]]:
    """Of each student its layers, its table and its reference."""
    rows = list(zip(edge_layers(), TABLES, REFERENCES, strict=True))
    if get(case, "mixed.as") == "blocks":
        return rows
    return [([*rows[0][0], *rows[2][0]], [*TABLES[0], *TABLES[2]], 1800.0)]


def edge_data(case: Case) -> Any:
    """Batches of both kinds of rounds."""
    data, held = networks.Batches(case), networks.Batches(case, 50_000)
    every, start = get(case, "mixed.every"), get(case, "mixed.start")
    batches = steps_of(case).passes
    return npp.mixed.Rounds(data, held, every=every, start=start, batches=batches)


def _mixed(case: Case, streams: Mapping[str, Stream]) -> Found:
    found: Found = {}
    kind = PlainPairs if get(case, "mixed.gates") == "pair" else PlainBlock
    seed, has_costs = get(case, "seed"), get(case, "mixed.costs")
    rate = rate_of(case, get(case, "steps"))
    teachers, chains = block_teachers(case), edge_chains(case)
    every, start = get(case, "mixed.every"), get(case, "mixed.start")
    data, held = networks.Batches(case), networks.Batches(case, 50_000)
    is_blocks = get(case, "mixed.as") == "blocks"
    for number, (layers, table, reference) in enumerate(chains):
        costs = (table, reference) if has_costs else ()
        loop = kind(layers, seed + number, rate, {"lr": LR, **EDGE_OPTIONS}, *costs)
        told = {True: 0, False: 0}
        for y in range(get(case, "steps")):
            is_architecture = y >= start and (y - start) % every == every - 1
            batch = (held if is_architecture else data)(seed, told[is_architecture])
            told[is_architecture] += 1
            x = _through(teachers[:number], batch["input"]) if is_blocks else batch["input"]
            lesson = teachers[number](x) if is_blocks else None

            def learn(output: torch.Tensor, batch=batch, lesson=lesson, number=number):
                if lesson is None:
                    return functional.cross_entropy(output, batch["target"])
                if number == len(chains) - 1:
                    return functional.cross_entropy(output, lesson.softmax(1))
                return functional.mse_loss(output, lesson)

            loop.step(y, is_architecture, x, learn)
        place = f"block-{number}/" if is_blocks else ""
        space = npp.mixed.student("edges", layers)
        found |= found_in(place, space, loop.tensors(), loop.losses)
    return found
