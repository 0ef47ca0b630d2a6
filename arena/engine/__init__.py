"""The sans-I/O engine: events in, commands out; the same code live and simulated."""
