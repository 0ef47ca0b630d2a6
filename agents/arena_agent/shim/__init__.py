"""The supervisor of one attempt on one node: a small process that outlives the agent (standard library only)."""
