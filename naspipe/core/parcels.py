"""What of a layer goes from one stage to another."""

from __future__ import annotations

from typing import NewType

Parcel = NewType("Parcel", str)
"""Plain text, so that logs and messages hold it as it is."""

LAYER = Parcel("layer")
"""All of it: parameters, buffers, optimizer state. The receiver writes it from now on."""
STATE = Parcel("state")
"""The same, where the sender's own passes read the layer on: it keeps a copy."""
COPY = Parcel("copy")
"""What a forward needs, for readers in another group. The sender keeps the layer."""
SUM = Parcel("sum")
"""The gradients of a step's passes so far. The sender's copy of the layer is used up."""
BUFFERS = Parcel("buffers")
"""What the forwards of a step left so far, for the next pass of the step."""

PARCELS = (LAYER, STATE, COPY, SUM, BUFFERS)
