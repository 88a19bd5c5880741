"""``naspipe.from_nni``: converts an NNI model space to a chain of blocks, and back.

From a space that was made from NNI's, it creates NNI's own model of an architecture with the
weights of a run's layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from naspipe.config.blocks import Block, Elastic, Shared
from naspipe.config.errors import ConfigError
from naspipe.config.rules import Rule
from naspipe.config.space import AnyBlock, Space
from naspipe.machine.determinism import kept_draws
from naspipe.nni.candidates import make_candidate
from naspipe.nni.counterparts import counterparts, find_sized, fixed_model
from naspipe.nni.cut import cut
from naspipe.nni.decisions import BlockLayers, LabelDecisions
from naspipe.nni.library import Sample, domains, library, structure_in
from naspipe.nni.proof import DiffersError, NniProof, load_tensors, tensor_partners
from naspipe.nni.shared_sizes import SETTING, find_slices
from naspipe.nni.trace import Traced, trace

# From a model space to a chain


PROOFS = 1000
"""Number of layers that are compared with NNI's own models by default."""

SLICE = "slice"

FIRST_LOOKS = 4
"""Number of architectures whose forwards are compared at once: first values, second values, ..."""


def from_nni(
    model_space: Any,
    *,
    name: str | None = None,
    rules: Mapping[str, Rule] | None = None,
    example: Any = None,
    proofs: int = PROOFS,
    share: str = "",
) -> Space:
    """Convert a model space of NNI 3.0 to naspipe blocks, with its modules' own weights.

    The layers start as copies of the model space's modules; layers whose sizes are themselves
    choices start as NNI creates them, from the run's seed. Parameters keep their names. Subnets are
    drawn over NNI's labels: ``space.decisions.choices_of(sample)`` and ``sample_of(choices)``
    convert between the two. Modules outside every choice become shared layers, which are ``exact``
    unless ``rules`` specifies otherwise, and are named after their first module. The first argument
    of the model space's forward is ``input``; a second one is the batch field of its name.

    The chain of an architecture is bitwise equal to NNI's own model of it. This is proved for
    architectures that together use every layer: immediately if an ``example`` is given, otherwise
    on a run's first batch, before anything is trained.

    Args:
        model_space: a model space of NNI's, or the user's own.
        name: name of the space; the name of the class by default.
        rules: rules of shared layers, by name.
        example: arguments of the forward: a tensor, or a tuple of tensors.
        proofs: maximum number of layers to compare. If a space has more, only those of the first
            architectures are compared, and the run's manifest records the number.
        share: ``slice`` for one set of weights for all sizes of a layer, as in NNI's one-shot
            strategies (AutoFormer): an elastic layer whose sizes are its settings. Otherwise each
            size has its own weights.

    Raises:
        ConfigError: if NNI is not installed, and for anything that cannot be converted, with the
            reason and the place.
    """
    if share not in ("", SLICE):
        raise ConfigError(f"from_nni: expected share={SLICE!r} or nothing, found {share!r}")
    if proofs < 1:
        raise ConfigError(f"from_nni: expected proofs=1 or more, found {proofs}")
    name = name or type(model_space).__name__
    _check_structure(model_space)
    values = domains(model_space)
    traced = trace(model_space)
    find_sized(traced, values)
    drafts = cut(model_space, traced.graph)
    # The path of the first module with parameters or a decision, for messages and names.
    places = [
        next((str(n.target) for n in draft.anchors if n.op == "call_module"), "forward")
        for draft in drafts
    ]
    layers = [
        BlockLayers(draft, values, f"{name}.{place}")
        for draft, place in zip(drafts, places, strict=True)
    ]
    used = {label for each in layers for label in each.labels}
    if unused := sorted(set(values) - used):
        raise ConfigError(
            f"space {name}: no module depends on the label {unused[0]}, so its effect cannot be "
            f"followed; use it in a LayerChoice, InputChoice, Repeat or Mutable module"
        )
    _look(traced, values)
    arguments = [str(node.target) for node in traced.graph.nodes if node.op == "placeholder"]
    fields = ("input", *arguments[1:])
    choosing = [own for own in layers if own.labels]
    decisions = LabelDecisions(values, choosing, name, model_space.simplify())
    sliced = find_slices(traced, drafts, layers, decisions) if share else [None] * len(drafts)
    blocks: list[AnyBlock] = []
    names: set[str] = set()
    for draft, place, own, slices in zip(drafts, places, layers, sliced, strict=True):
        given = () if blocks else fields  # the first block takes the batch's fields
        made = [partial(make_candidate, traced, draft, sample) for sample in own.samples]
        if slices is not None:
            settings = {SETTING: slices.texts}
            blocks.append(
                Elastic(
                    _unique_name(place, names),
                    slices.make,
                    settings,
                    fields=given,
                    apply=slices.apply,
                    cut=slices.cut,
                )
            )
        elif own.labels:
            blocks.append(Block(made, fields=given))
        else:
            blocks.append(Shared(_unique_name(place, names), made[0], fields=given))
    proof = NniProof(traced, blocks, decisions, fields, proofs)
    if example is not None:
        inputs = example if isinstance(example, tuple | list) else (example,)
        if len(inputs) != len(fields):
            raise ConfigError(
                f"from_nni: expected an example of {', '.join(fields)}, found {len(inputs)} tensors"
            )
        proof.prove(dict(zip(fields, inputs, strict=True)))
    space = Space(name, blocks, decisions, proof)
    return space.with_rules(rules) if rules else space


def _look(traced: Traced, values: Mapping[str, Sequence[Any]]) -> None:
    """Compare the forwards of a few architectures with those of NNI's own models.

    Raises:
        ConfigError: naming what differs.
    """
    longest = max(map(len, values.values()), default=1)
    for number in range(min(longest, FIRST_LOOKS)):
        sample = {
            label: options[min(number, len(options) - 1)] for label, options in values.items()
        }
        with kept_draws():
            model = fixed_model(traced.space, sample)
        counterparts(traced, sample, model)
        try:  # modules that match in training must also match in evaluation
            counterparts(traced, sample, model, training=False)
        except ConfigError:
            raise ConfigError(
                f"space {traced.name}: expected a forward that is the same in training and in "
                f"evaluation, found one that asks self.training; put what depends on it into a "
                f"module of its own, as nn.Dropout is"
            ) from None


def _check_structure(model_space: Any) -> None:
    """Reject choices whose layers subnets could not share, or whose outputs have no shape."""
    known = library()
    if not isinstance(model_space, known.model_space):
        raise ConfigError(
            f"from_nni: expected an nni.nas.nn.pytorch.ModelSpace, found "
            f"{type(model_space).__name__}"
        )
    for path, module in structure_in(model_space):
        where = f"{type(model_space).__name__}.{path}"
        if isinstance(module, known.input_choice) and module.reduction == "none":
            raise ConfigError(
                f"{where}: an InputChoice with reduction 'none' hands on a list; use sum, mean or "
                f"concat"
            )
        if isinstance(module, known.layer_choice):
            for candidate in module:
                for inner, _ in structure_in(candidate):
                    raise ConfigError(
                        f"{where}: a candidate of this LayerChoice holds another choice"
                        f"{f' ({inner})' if inner else ''}, whose layers could not be shared; list "
                        f"all combinations as candidates"
                    )


def _unique_name(place: str, taken: set[str]) -> str:
    """Convert a path to a name that no other shared layer has."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", place)
    name = name if re.match(r"[A-Za-z_]", name) else f"_{name}"
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name}_{number}", number + 1
    taken.add(unique)
    return unique


# From a run's layers to NNI's own model


def proof_of(space: Space) -> NniProof:
    """Return what :func:`naspipe.from_nni` recorded for a whole space, or raise ConfigError."""
    if not isinstance(space.proof, NniProof) or space.decisions is not space.proof.decisions:
        raise ConfigError(
            f"space {space.name}: expected a whole space of naspipe.from_nni, found another one"
        )
    return space.proof


def instance(space: Space, sample: Sample, layers: Sequence[Any]) -> nn.Module:
    """Return the result of NNI's ``model_context(sample)``, with all tensors of the layers.

    Args:
        space: a space made by :func:`naspipe.from_nni`.
        sample: the value of every label.
        layers: the layers of this architecture, in the order of the chain.

    Raises:
        ConfigError: if the space is not NNI's, or if the model differs from the layers.
    """
    traced = proof_of(space).traced
    with kept_draws():
        model = fixed_model(traced.space, sample)
    try:
        load_tensors(list(tensor_partners(layers, counterparts(traced, sample, model))))
    except DiffersError as error:
        raise ConfigError(
            f"space {space.name}: expected the layers of {sample!r:.200}, found {error}"
        ) from None
    return model
