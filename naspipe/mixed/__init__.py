"""Layers that draw their own path, from architecture parameters that are also trained.

This is ProxylessNAS (Cai et al. 2019). A :class:`MixedEdge` is one layer of a chain; it holds all
of its candidates and a number for each.

=========================== =======================================================================
:func:`student`              a space of mixed edges
:class:`MixedEdge`           one of its layers
:class:`PairEdge`            one that learns from two sampled paths
:class:`Rounds`              data for weights, alternating with data for architecture parameters
:func:`operations`           a table of operations, for :class:`naspipe.losses.CostTerm`
=========================== =======================================================================
"""

from __future__ import annotations

from naspipe.mixed.architecture import Alpha as Alpha
from naspipe.mixed.architecture import Rounds as Rounds
from naspipe.mixed.edges import MixedEdge as MixedEdge
from naspipe.mixed.edges import PairEdge as PairEdge
from naspipe.mixed.student_space import operations as operations
from naspipe.mixed.student_space import student as student

__all__ = ["Alpha", "MixedEdge", "PairEdge", "Rounds", "operations", "student"]
