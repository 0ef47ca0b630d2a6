"""Durable state: SQLite through SQLAlchemy, one writer, many readers."""
