"""Schedules on a virtual clock: scenarios that do not exist yet, and recorded runs again."""
