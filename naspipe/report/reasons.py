"""What a stage can have waited for."""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """What a stage waited for."""

    FILL = "fill"
    """The stage's first input: the pipeline was filling."""
    INPUT = "input"
    """Activations, gradients or a layer of another stage, the message's time included."""
    CAUSAL = "causal"
    """An earlier subnet's WRITE of a layer that a forward reads whose input was there."""
    REDUCTION = "reduction"
    """The gradients of another group's passes: a WRITE that had its own waited for their sum."""
    COPY = "copy"
    """A layer that another group wrote: the WRITE was over, and the copy on its way back."""
    BUFFERS = "buffers"
    """What another group's forward leaves for the next pass: running statistics of norms."""
    NORM = "norm"
    """The global norm: a WRITE that had its gradient waited for all gradients of its step."""
    WINDOW = "window"
    """An earlier subnet to finish here, so that another may be under way."""
    TEACHER = "teacher"
    """Nothing at all: a teacher's forward ran here."""
    LOAD = "load"
    """A layer on its way from host memory to the device."""
    OTHER = "other"
    """Nothing that a log knows: dispatch, messages, making of layers, a busy machine."""
    DRAIN = "drain"
    """Nothing is left to do here while other stages finish."""
