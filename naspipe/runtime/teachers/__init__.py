"""Processes that compute labels for others: a run's own, and those that join from anywhere.

What a label is, and how a student asks for one, is in ``labels``.
"""
