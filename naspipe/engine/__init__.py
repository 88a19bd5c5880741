"""Events, commands, the controller, versions and residency: every decision of a stage. Pure."""
