"""Checkpoints as files: their form, which of them count, reading and writing them; knows numpy but no torch."""
