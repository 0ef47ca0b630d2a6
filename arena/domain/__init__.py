"""The words of Arena as frozen values: jobs, plans, clusters, events, commands. Pure: no I/O, no clock."""
