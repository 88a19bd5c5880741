"""NNI's own model of an architecture, with the weights of a run's layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.data.keyed.global_draws import kept_draws
from naspipe.nni.candidates import counterparts, fixed_model
from naspipe.nni.mutables import Sample
from naspipe.nni.proof import DiffersError, NniProof, load_tensors, tensor_partners


def proof_of(space: Space) -> NniProof:
    """What :func:`naspipe.from_nni` noted of a space.

    Raises:
        ConfigError: when the space is not of it, or a part of one that is.
    """
    if not isinstance(space.proof, NniProof) or space.decisions is not space.proof.decisions:
        raise ConfigError(
            f"space {space.name}: expected a whole space of naspipe.from_nni, found another one"
        )
    return space.proof


def instance(space: Space, sample: Sample, layers: Sequence[Any]) -> nn.Module:
    """What NNI's ``model_context(sample)`` makes, with all tensors of the layers.

    Args:
        space: of :func:`naspipe.from_nni`.
        sample: the value of every label.
        layers: of this architecture, in the order of the chain.

    Raises:
        ConfigError: when the space is not NNI's, or the model is another than the layers.
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
