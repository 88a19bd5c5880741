"""How work is shown while it goes on, and who else is told of it; no results."""
