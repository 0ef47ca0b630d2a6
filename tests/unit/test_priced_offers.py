"""What `arena` says a job could have instead: each offer once, with what tells it from the others."""

from __future__ import annotations

from arena.domain.job import JobId
from arena.domain.reason import Reason, ReasonCode
from arena.policies.priced.policy import PricedPolicy
from tests.builders import allocation_on, grid_of, holding_of, node_info, scaling_grid, snapshot_of, train_spec

GRID = grid_of(
    *scaling_grid("a", [(2,), (1, 1), (1,)]).cells,
    *scaling_grid("b", [(2,), (1,)], one_gpu_s=3.0).cells,
)
NODES = [
    *(node_info(f"a{at}", gpus=2, gpu_type="a", zone="east") for at in (1, 2)),
    node_info("b1", gpus=2, gpu_type="b", zone="east"),
    node_info("b2", gpus=2, gpu_type="b", zone="west"),
]


def told(offer: Reason) -> tuple[str, str]:
    return offer.names["group"], offer.names.get("zone", "")


def test_what_a_job_could_have_instead_differs_in_type_or_number_or_place() -> None:
    spec = train_spec("j", gpus={"min": 1, "max": 2})
    holding = holding_of(GRID, allocation_on(("a1", (0, 1))))
    snapshot = snapshot_of(NODES, {"j": (spec, GRID)}, running={"j": holding}, usd_per_hour={"a": 2.0, "b": 0.5})
    first, *others = PricedPolicy().explain(snapshot, JobId("j"))
    assert (first.code, told(first)) == (ReasonCode.KEPT, ("a 2", ""))
    assert {offer.code for offer in others} == {ReasonCode.NEXT_BEST}
    assert others[0].names["group"] == "a 1"
    assert len({told(offer) for offer in others}) == len(others)
    assert "a 1+1" not in {offer.names["group"] for offer in others}  # as many of the same GPUs as it has
    cheap = [offer for offer in others if offer.names["group"].startswith("b")]
    assert {offer.names["zone"] for offer in cheap} == {"east", "west"}
    for offer in (first, *others):
        count = offer.numbers["gpu_count"]
        assert offer.numbers["usd_per_hour"] == count * (2.0 if offer.names["group"].startswith("a") else 0.5)
        assert offer.numbers["node_count"] == 1
        assert offer.numbers["steps_per_s"] > 0
