"""A plain PyTorch loop over the user's own objects, with which a run is compared.

:class:`naspipe.verification.plain_loop.PlainLoop` is written from the rules of
docs/reproducibility.md. It shares descriptions with the runtime, such as workloads, rules and
recipes, but none of the code that executes them.
"""
