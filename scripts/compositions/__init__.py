"""Random compositions of features: definitions and executions that are drawn, run and compared.

* ``cases``: what is drawn, from the declarations of the settings themselves.
* ``networks``: the layers, spaces, data, losses and teachers that a case names.
* ``plain``: the plain loop of a case; nothing of the runtime.
* ``runs``: naspipe's execution of a case, and the comparison of both.
* ``pairs``: a covering array of all pairs of values.
* ``shrinking``: the smallest case that still fails, and a script that shows it.
* ``broken``: deliberate faults in the runtime, which the check has to find.
"""
