"""Identities, messages, configuration and errors: the standard library only."""
