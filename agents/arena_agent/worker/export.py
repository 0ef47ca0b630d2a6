"""Writes the final model: one safetensors file of whole, unsharded tensors, and a description beside it."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from arena.domain.job import JobSpec
from arena_agent.worker.checkpoint import read_model
from arena_agent.worker.manifest import TEMPORARY_PREFIX, sync, write_durably

MODEL_NAME = "model.safetensors"
DESCRIPTION_NAME = "model.json"


def export_model(checkpoint: Path, output_dir: Path, spec: JobSpec, *, step: int, loss: float | None) -> Path:
    """Export the model of a durable checkpoint; run by one rank alone.

    It is read back from the checkpoint rather than gathered from the ranks: no communication, and the result is
    what was saved.

    Returns:
        The path of the model file, which is durable.
    """
    assert spec.train is not None
    output_dir.mkdir(parents=True, exist_ok=True)
    temporary = output_dir / f"{TEMPORARY_PREFIX}{MODEL_NAME}"
    save_file(read_model(checkpoint), temporary, metadata={"format": "pt", "step": str(step)})
    sync(temporary)
    final = temporary.rename(output_dir / MODEL_NAME)
    sync(output_dir)
    description = {
        "name": spec.name,
        "step": step,
        "loss": loss,
        "tokens": step * spec.train.tokens_per_step,
        "model": spec.train.model.model_dump(mode="json"),
    }
    write_durably(output_dir / DESCRIPTION_NAME, json.dumps(description, indent=1).encode())
    return final
