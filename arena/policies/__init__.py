"""Scheduling policies: pure functions from a snapshot to a decision."""
