"""The ``naspipe`` command: one module per subcommand."""
