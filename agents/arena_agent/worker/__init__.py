"""The torch worker runtime: trains a job under any plan and reshards its checkpoints."""
