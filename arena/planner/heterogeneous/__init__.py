"""One job over several GPU types and zones: the search, its bound, its constraints. Begin with ``search``."""
