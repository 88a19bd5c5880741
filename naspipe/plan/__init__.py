"""Costs, partitions, orders, the causal bound, and the simulator. Pure.

Parameters that occur in many places are explained only here:

- ``pipeline``: the streams that are planned, and their policy; ``plan``: how it is executed;
  ``execution``: the user's settings.
- ``subnets``: the subnets of one stream in sequence order, at least one. ``rules``: the rule of
  each block of its chain. ``is_shared``: for each block, whether every subnet uses its only layer.
  ``costs``: the costs of every layer, in nanoseconds. ``sizes``: the size of every layer, if memory
  is limited.
- ``steps``: how passes form steps, in every stream. ``window``: number of sequence IDs of a stream
  that are under way at a time. ``rounds``: number of rounds in which a schedule is improved.
- ``timing``: durations on the virtual clock, given a memory plan.
"""
