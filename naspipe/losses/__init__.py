"""Losses for students of a teacher; a user's own is a class with the same two methods.

========================= ==========================================================================
:class:`SoftTarget`        the label, and the teacher's softened scores (Hinton et al. 2015)
========================= ==========================================================================
"""

from __future__ import annotations

from naspipe.losses.soft_target import SoftTarget as SoftTarget

__all__ = ["SoftTarget"]
