"""What Sailor's simulator says of a plan, from its profiles and networks (Sailor, SOSP'25; formulas as published).

T = (N - 1) max(comp + comm) + sum comm + sum comp + update + sync with N = ceil(batch / (mbs dp)); a stage is as slow
as its slowest replica. Communication of a stage: one send from the first, two backwards from each other. Sync: ring
all-reduce 2 (n - 1) t(bytes / n) in buckets of 500 MB over the slowest neighbours. Memory: 24 bytes a parameter, four
bytes an activation of every micro-batch in flight.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

SailorKind = tuple[str, int, str]
"""GPU type, tensor-parallel degree, zone."""

GLOBAL_BATCH = {"OPT-350": 1024, "GPT-Neo-2.7": 2048}
USD_PER_S = {"A100-40": 0.00102038472, "V100-16": 0.00079444389}
"""Of a GPU, from the costs that the simulator reports for its own plans."""
MEMORY_BYTES = {"A100-40": 42338615296, "V100-16": 17179869184}
_BUCKET_BYTES = 500e6
_BYTES_PER_PARAMETER = 24
_FIXED_BYTES = 5.06e9


@dataclass(frozen=True, kw_only=True)
class Simulator:
    """Sailor's formulas on one model."""

    root: Path
    model: str
    _profiles: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def _networks(self) -> Any:
        return json.loads((self.root / "providers/multizone_bandwidths_het.json").read_text())

    @cached_property
    def _prices(self) -> Any:
        return json.loads((self.root / "providers/gcp/communication_cost.json").read_text())

    @cached_property
    def _sizes(self) -> Any:
        return json.loads((self.root / "Planner/llm_info.json").read_text())[self.model]

    @property
    def layer_count(self) -> int:
        """Layers, both ends among them."""
        return len(self._sizes["1"])

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return GLOBAL_BATCH[self.model]

    def profile(self, gpu_type: str) -> Mapping[str, Any]:
        """Return seconds by micro-batch, degree and layer: forward, backward, update."""
        if gpu_type not in self._profiles:
            path = self.root / "Planner/sailor_planner/profiles" / self.model / gpu_type / "profile.json"
            self._profiles[gpu_type] = json.loads(path.read_text())
        found: Mapping[str, Any] = self._profiles[gpu_type]
        return found

    def compute_s(self, kind: SailorKind, size: int, layers: Sequence[int]) -> float:
        """Return forward and backward of a micro-batch; infinite where nobody profiled it."""
        table = self.profile(kind[0]).get(str(size), {}).get(str(kind[1]))
        return math.inf if table is None else sum(table[str(layer)][0] + table[str(layer)][1] for layer in layers)

    def update_s(self, kind: SailorKind, size: int) -> float:
        """Return the optimizer's step."""
        return float(self.profile(kind[0])[str(size)][str(kind[1])]["1"][2])

    def send_s(self, one: SailorKind, other: SailorKind, size: int) -> float:
        """Return the time of a micro-batch's activations between two kinds."""
        count = self._sizes["1"]["1"]["act_output_floats"] * 4 * size
        return self._transfer_s(one, other, count, (one[1], other[1]))

    def ring_s(self, order: Sequence[SailorKind], replicas: int, layers: Sequence[int]) -> float:
        """Return the all-reduce of a stage over its replicas in some order."""
        whole = sum(self._sizes["1"][str(layer)]["params_floats"] * 4 for layer in layers)
        pairs = {*pairwise(order), *((kind, kind) for kind in order)}
        return max(
            self._buckets_s(one, other, replicas, whole / kind[1]) for one, other in pairs for kind in set(order)
        )

    def memory_bytes(self, kind: SailorKind, size: int, layers: Sequence[int], left: int) -> float:
        """Return the peak of a stage with ``left`` stages from it to the last."""
        sizes = self._sizes[str(kind[1])]
        parameters = sum(sizes[str(layer)]["params_floats"] for layer in layers)
        kept = sum(sizes[str(layer)]["act_mem_floats"] for layer in layers)
        return float(_FIXED_BYTES + _BYTES_PER_PARAMETER * parameters + 4.0 * kept * size * left)

    def step_s(self, stages: Sequence[Sequence[SailorKind]], cuts: Sequence[int], size: int) -> float:
        """Return the step time of a plan: kinds of each stage's replicas, first layer of each stage and the end."""
        dp, pp = len(stages[0]), len(stages)
        rounds = math.ceil(self.batch / (size * dp))
        layers = [range(first, end) for first, end in pairwise(cuts)]
        comp = [max(self.compute_s(kind, size, layers[at]) for kind in set(stages[at])) for at in range(pp)]
        comm = [0.0] * pp
        for at, (ahead, behind) in enumerate(pairwise(stages)):
            links = set(zip(ahead, behind, strict=True))
            if at == 0:
                comm[0] = max(self.send_s(here, there, size) for here, there in links)
            comm[at + 1] = 2 * max(self.send_s(there, here, size) for here, there in links)
        update = max(self.update_s(kind, size) for stage in stages for kind in set(stage))
        sync = 0.0
        if dp > 1:
            sync = max(
                min(self.ring_s(order, dp, layers[at]) for order in permutations(sorted(set(stage))))
                for at, stage in enumerate(stages)
            )
        slowest = max(here + sent for here, sent in zip(comp, comm, strict=True))
        return (rounds - 1) * slowest + sum(comm) + sum(comp) + update + sync

    def usd(self, stages: Sequence[Sequence[SailorKind]], cuts: Sequence[int], size: int) -> tuple[float, float]:
        """Return the price of a second of the GPUs, and of what crosses zones in a step."""
        per_s = sum(USD_PER_S[kind[0]] * kind[1] for stage in stages for kind in stage)
        dp = len(stages[0])
        rounds, crossed = math.ceil(self.batch / (size * dp)), 0.0
        count = self._sizes["1"]["1"]["act_output_floats"] * 4 * size
        for ahead, behind in pairwise(stages):
            for here, there in zip(ahead, behind, strict=True):
                crossed += 2 * rounds * count * self._prices[here[2]][there[2]] / 1e9
        for at, stage in enumerate(stages):
            zones = sorted({kind[2] for kind in stage})
            whole = sum(self._sizes["1"][str(layer)]["params_floats"] * 4 for layer in range(cuts[at], cuts[at + 1]))
            for one, other in pairwise([*zones, zones[0]]):
                crossed += 2 * (dp - 1) / dp * whole * self._prices[one][other] / 1e9
        return per_s, crossed

    def _buckets_s(self, one: SailorKind, other: SailorKind, replicas: int, count: float) -> float:
        seconds = 0.0
        while count > 0:
            bucket = min(count, _BUCKET_BYTES)
            seconds += 2 * (replicas - 1) * self._transfer_s(one, other, bucket / replicas, (1, 1))
            count -= bucket
        return seconds

    def _transfer_s(self, one: SailorKind, other: SailorKind, count: float, gpus: tuple[int, int]) -> float:
        found = self._networks[one[2]][one[0]][str(gpus[0])][other[2]][other[0]][str(gpus[1])]
        (square, linear, constant), _ = found
        power = math.log2(count / 1e6)
        return float(count / (1e9 * (square * power * power + linear * power + constant)))
