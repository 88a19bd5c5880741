"""Costs, partitions, orders, the causal bound, and the simulator. Pure.

Parameters that occur everywhere are explained here, once:

- ``pipeline``: the streams that are planned, and their policy; ``plan``: how it is carried out;
  ``execution``: what the user asked for.
- ``subnets``: those of one stream in sequence order, at least one. ``rules``: the rule of each
  block of its chain. ``is_shared``: for each block, whether every subnet uses its only layer.
  ``costs``: of every layer, in nanoseconds. ``sizes``: of every layer, if memory is limited.
- ``steps``: how passes form steps, in every stream. ``window``: how many sequence IDs of a stream
  are under way at a time. ``rounds``: how often a schedule is improved.
- ``timing``: what everything takes on the virtual clock, under a plan of the memory.
"""
