"""How calls are answered: unknown keywords, messages as keywords, ends in a line; no message itself."""
