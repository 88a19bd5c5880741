"""Settings: one declaration per field, from which checks, flags, help, lists and JSON are made.

To add a setting, declare a field in ``pipeline_groups.py`` or ``run_groups.py`` (how a run is
carried out) or in ``naspipe/core/recipe.py`` (how every step is taken), nothing else; then write
``docs/settings.md`` anew with ``scripts/write_settings.py``. Here is nothing that uses a setting.
"""
