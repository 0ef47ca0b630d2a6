"""Profiles that ``arena plan`` is given: read, checked against the job, and laid beside their GPU types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import PurePath

from arena.cli.submit import read_text
from arena.domain.cluster import GpuType
from arena.domain.job import TrainSpec
from arena.domain.profile import Profile
from arena.errors import UserError
from arena.planner.profile_files import is_sailor_profile, read_profile, read_sailor_profile
from arena.planner.profiles import differences

_SAILOR_NAMES = {"gh-96": "gh200"}
"""GPU types of the catalog by Sailor's folders, where these are not the same but for capitals."""


def with_profiles(gpu_types: Mapping[str, GpuType], files: Iterable[str], train: TrainSpec) -> Mapping[str, GpuType]:
    """Return GPU types with what was measured on them.

    Args:
        files: Paths of profiles in Arena's form or in Sailor's, whose folder is named after the GPU type.

    Raises:
        UserError: A file is no profile, or is of another model or an unknown type.
    """
    known = dict(gpu_types)
    for file in files:
        profile = _profile(file, known, train)
        found = differences(profile, train)
        if found:
            raise UserError(
                f"{file} was not measured for this job",
                why="; ".join(found),
                fix="give a profile of layers of this shape and precision, or leave --profile out",
            )
        gpu_type = known[profile.gpu_type]
        known[profile.gpu_type] = replace(gpu_type, profiles=(*gpu_type.profiles, profile))
    return known


def _profile(file: str, gpu_types: Mapping[str, GpuType], train: TrainSpec) -> Profile:
    text = read_text(file, command="plan")
    if not is_sailor_profile(text):
        return read_profile(text, source=file, gpu_types=sorted(gpu_types))
    folder = PurePath(file).parent.name.lower()
    name = _SAILOR_NAMES.get(folder, folder)
    if name not in gpu_types:
        raise UserError(
            f"{file} does not say its GPU type",
            why=f"it is in Sailor's form, and its folder {PurePath(file).parent.name!r} is named after none",
            fix=f"put it into a folder named after one of {', '.join(sorted(gpu_types))}",
        )
    return read_sailor_profile(text, source=file, gpu_type=name, model=train.model)
