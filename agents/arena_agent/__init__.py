"""The node agent: devices, supervised processes, and the link to the scheduler."""
