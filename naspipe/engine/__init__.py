"""Events, commands, the controller, versions and residency: every decision of a stage. Pure.

Parameters that occur everywhere are explained here, once:

- ``stage``: the stage that the object belongs to. ``book`` (its versions), ``residency`` (what is
  on its device), ``whereabouts`` (who uses which layer where), ``clearance`` (what its forwards
  wait for), ``gates`` and ``writes`` (what holds WRITEs back, and their order) are the parts of the
  same stage's controller.
- ``rules``: of each stream, the rule of each block of its chain.
- ``steps``: how passes form steps, in every stream. ``wiring``: how the streams are joined.
- ``policy``: which version of a layer a subnet reads. ``order``: which of several clear tasks runs
  first.

Every method raises ``InvariantError`` when what it is told does not fit its state: that is a bug,
never bad luck.
"""
