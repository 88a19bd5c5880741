"""Settings, recipes, spaces, rules, identities and errors: the standard library only."""
