"""How calls are answered: keywords they lack, messages in Python's words; no message itself."""
