"""Events, commands and tasks, and the ports of the controller: the standard library only."""
