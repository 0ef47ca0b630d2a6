"""Profiles of the data folder for the rows whose model and GPU type they were measured on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arena.domain.profile import LinkKind, MessageTime, Profile
from arena.planner.profile_files import read_sailor_profile, sailor_sends
from experiments.planner_accuracy.cases import Case

_FOLDERS = {
    "a100-40": "A100-40",
    "a100-80": "A100-80",
    "gh200": "GH-96",
    "v100-16": "V100-16",
    "rtx-3090": "RTX-3090",
    "titan-rtx": "Titan-RTX",
}
"""Names of the catalog by those of Sailor's folders."""
_ZONE = "us-central1-a"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFolder:
    """Sailor's profiles and networks, as they lie in its repository."""

    root: Path

    def with_profiles(self, cases: Iterable[Case]) -> list[Case]:
        """Return cases with the profile of their model on their GPU type, where there is one for their precision."""
        return [self._with_profile(case) for case in cases]

    def _with_profile(self, case: Case) -> Case:
        folder = _FOLDERS.get(case.gpu_type.name)
        if folder is None or case.train.precision != "fp32":
            return case
        for path in self._files(case.row.model, folder):
            profile = self._profile(path, case, folder)
            return replace(case, gpu_type=replace(case.gpu_type, profiles=(profile,)))
        return case

    def _files(self, model: str, folder: str) -> Iterator[Path]:
        profiles = self.root / "Planner" / "sailor_planner" / "profiles"
        for path in sorted(profiles.glob(f"*/{folder}/profile.json")):
            if model.startswith(path.parent.parent.name):
                yield path

    def _profile(self, path: Path, case: Case, folder: str) -> Profile:
        return read_sailor_profile(
            path.read_text(encoding="utf-8"),
            source=str(path),
            gpu_type=case.gpu_type.name,
            model=case.train.model,
            messages=self._sends(folder),
        )

    def _sends(self, folder: str) -> tuple[MessageTime, ...]:
        """Return the sends from one GPU to one of another node."""
        networks = self.root / "providers" / "multizone_bandwidths_het.json"
        if not networks.is_file():
            return ()
        table: Any = json.loads(networks.read_text(encoding="utf-8"))
        coefficients, _ = table[_ZONE][folder]["1"][_ZONE][folder]["1"]
        return sailor_sends(coefficients, LinkKind.NETWORK)
