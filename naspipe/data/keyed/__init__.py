"""Batches of a torch ``Dataset`` by their numbers: order, draws and loader processes.

What makes one batch is a pure function of the seed and the batch's number. Nothing here knows of
subnets or stages.
"""
