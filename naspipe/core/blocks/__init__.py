"""The kinds of blocks that a chain is made of, and decisions that reach several of them.

What puts them in a chain is :class:`naspipe.core.space.Space`.
"""
