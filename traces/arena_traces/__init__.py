"""Recorded histories: what happened on nodes and in schedulers, and checks on it."""
