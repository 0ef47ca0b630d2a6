"""Which checkpoint of a place a resume would take: the newest whole one, with what is wrong with newer ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from arena_agent.checkpoints.manifest import (
    MANIFEST_NAME,
    CheckpointError,
    Manifest,
    read_manifest,
    step_directories,
    verify_files,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The checkpoint to load, if there is one, and the newer ones that were passed over.

    Args:
        name: Directory name, None when there is nothing to load.
        manifest: Its manifest.
        skipped: Reason for each newer directory.
    """

    name: str | None
    manifest: Manifest | None
    skipped: Mapping[str, str]


def select_newest(root: Path, damaged: Mapping[str, str] = MappingProxyType({})) -> Selection:
    """Choose the newest checkpoint that is whole by its sizes; newer ones are passed over and named.

    Args:
        root: The checkpoint directory.
        damaged: Checkpoints already found to differ from their digests, with the reason.

    Raises:
        CheckpointError: There are completed checkpoints, but all of them are damaged: starting afresh would
            silently lose the work.
    """
    skipped: dict[str, str] = {}
    is_work_lost = False
    for name in step_directories(root):
        reason, manifest = (damaged[name], None) if name in damaged else examine(root / name)
        if manifest is not None:
            return Selection(name=name, manifest=manifest, skipped=skipped)
        skipped[name] = reason
        is_work_lost = is_work_lost or (root / name / MANIFEST_NAME).exists()
    if is_work_lost:
        raise CheckpointError(
            f"no checkpoint in {root} can be loaded",
            why="; ".join(skipped.values()),
            fix="restore one from a copy, or clear the directory to start afresh",
        )
    return Selection(name=None, manifest=None, skipped=skipped)


def examine(directory: Path) -> tuple[str, Manifest | None]:
    """Return a checkpoint's manifest when it is whole by its sizes, else None and what is wrong."""
    try:
        manifest = read_manifest(directory)
        verify_files(directory, manifest)
    except CheckpointError as error:
        return error.message, None
    except OSError as error:
        return f"{directory.name}: {error}", None
    return "", manifest
