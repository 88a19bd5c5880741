"""All decisions of a stage: events, commands, the controller, versions and residency. Pure.

Parameters that occur in many places are explained only here:

- ``stage``: the stage that the object belongs to. ``book`` (its versions), ``residency`` (which
  layers are on its device), ``whereabouts`` (which stage uses which layer), ``clearance`` (what its
  forwards wait for), ``gates`` and ``writes`` (what holds WRITEs back, and their order) are the
  parts of the same stage's controller.
- ``rules``: for each stream, the rule of each block of its chain.
- ``steps``: how passes form steps, in every stream. ``wiring``: how the streams are connected.
- ``policy``: which version of a layer a subnet reads. ``order``: which of several clear tasks runs
  first.

Every method raises ``InvariantError`` if its input is inconsistent with its state, which is always
a bug.
"""
