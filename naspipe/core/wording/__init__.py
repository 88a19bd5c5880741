"""How calls are answered: keywords that are not known, messages as keywords; no message itself."""
