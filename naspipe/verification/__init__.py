"""A plain PyTorch loop over the user's own objects, as a reference for runs.

:class:`naspipe.verification.plain_loop.PlainLoop` implements the rules of docs/reproducibility.md.
It shares descriptions with the runtime, such as workloads, rules and recipes, but none of the code
that executes them.
"""
