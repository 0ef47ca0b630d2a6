"""Readers of Hugging Face ``config.json`` files, by the kind of model."""
