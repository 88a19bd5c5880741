"""A trained subnet as files that work without naspipe."""
