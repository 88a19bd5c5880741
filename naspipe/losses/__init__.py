"""Losses for students of a teacher; a user-defined loss is a class with the same methods.

Without a teacher, a loss is called with outputs and its ``fields`` of the batch (``target`` if it
names none). ``distill(output, taught, *fields)`` compares the student's output with the teacher's,
pass by pass. ``joined(outputs, lessons)`` is one loss over all passes of a step.

========================= ==========================================================================
:class:`SoftTarget`        the label, and the teacher's softened scores (Hinton et al. 2015)
:class:`TopTarget`         the label, and only the teacher's greatest scores
:class:`DistilBert`        soft scores, masked words, hidden states (Sanh et al. 2019)
:class:`HiddenStates`      only hidden states, for an encoder that is distilled block by block
:class:`BYOL`              agreement of two views (Grill et al. 2020)
:class:`Contrastive`       each sample among all of a step: InfoNCE as in MoCo-v3 (Chen et al. 2021)
:class:`CostTerm`          another loss times the cost of the drawn paths (Cai et al. 2019)
========================= ==========================================================================
"""

from __future__ import annotations

from naspipe.losses.losses import BYOL as BYOL
from naspipe.losses.losses import Contrastive as Contrastive
from naspipe.losses.losses import CostTerm as CostTerm
from naspipe.losses.losses import DistilBert as DistilBert
from naspipe.losses.losses import HiddenStates as HiddenStates
from naspipe.losses.losses import SoftTarget as SoftTarget
from naspipe.losses.top_target import TopTarget as TopTarget

__all__ = [
    "BYOL", "Contrastive", "CostTerm", "DistilBert", "HiddenStates", "SoftTarget", "TopTarget",
]  # fmt: skip
