"""Arena: a cluster-level GPU co-scheduler that also adapts each job's parallelism."""

__version__ = "0.1.0"
