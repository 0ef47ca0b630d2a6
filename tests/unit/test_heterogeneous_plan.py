"""Plans over mixed GPUs: priced like uniform ones, checked against a run of every pass, limits kept."""

import re
from dataclasses import replace

import pytest

from arena.domain.allocation import GpuGroup
from arena.domain.capability import PARTS_MAX, unsupported
from arena.domain.job import ModelFamily, ModelSpec, TrainSpec
from arena.domain.parallel import ParallelPlan, Recompute, Replica, Stage
from arena.domain.reason import ReasonCode
from arena.errors import InfeasibleError, SpecError
from arena.planner.candidates import candidate_of
from arena.planner.communication import Tier
from arena.planner.cost import evaluate
from arena.planner.hardware import catalog
from arena.planner.heterogeneous.judge import Judge, evaluate_plan
from arena.planner.heterogeneous.offer import Constraints, Objective, Offer, Offered, Space, ZoneLinks
from arena.planner.heterogeneous.search import best_column, search

TYPES = catalog()
SMALL = Space(pp_max=2, micro_batch_max=2, recompute=False)
FAR = ZoneLinks(
    tiers={("east", "west"): Tier(bandwidth_bytes_per_s=1e8, latency_s=0.03)},
    usd_per_byte={("east", "west"): 2e-11},
)


def train_spec(*, layers: int = 8, hidden: int = 256, batch: int = 32) -> TrainSpec:
    model = ModelSpec(family=ModelFamily.GPT, layers=layers, hidden=hidden, heads=8, vocab_size=1024, seq_len=256)
    return TrainSpec(model=model, precision="bf16", global_batch=batch)


def offer_of(*parts: tuple[str, str, int], gpus_per_node: int = 4) -> Offer:
    return {
        (name, zone): Offered(gpu_type=TYPES[name], gpu_count=count, gpus_per_node=min(count, gpus_per_node))
        for name, zone, count in parts
    }


@pytest.mark.parametrize(
    ("dp", "tp", "pp", "micro_batch_size", "recompute"),
    [
        (1, 1, 1, 1, Recompute.NONE),
        (4, 1, 1, 2, Recompute.FULL),
        (2, 2, 1, 1, Recompute.NONE),
        (2, 2, 2, 1, Recompute.NONE),
        (2, 4, 2, 2, Recompute.FULL),
        (4, 1, 4, 1, Recompute.NONE),
    ],
)
def test_a_plan_on_one_type_costs_what_the_uniform_model_says(
    dp: int, tp: int, pp: int, micro_batch_size: int, recompute: Recompute
) -> None:
    train = train_spec()
    plan = ParallelPlan.uniform(
        layer_count=8, dp=dp, tp=tp, pp=pp, micro_batch_size=micro_batch_size, recompute=recompute
    )
    gpus_per_node = min(plan.gpu_count, 4)
    group = GpuGroup.of("a100-40", [gpus_per_node] * (plan.gpu_count // gpus_per_node))
    uniform = evaluate(train, TYPES["a100-40"], group, candidate_of(plan, train.global_batch))

    found = evaluate_plan(train, plan, offer_of(("a100-40", "east", plan.gpu_count))).estimate

    assert found.iter_time_s == pytest.approx(float(uniform.iter_time_s[0]), rel=1e-12)
    assert found.usd_per_step == pytest.approx(float(uniform.usd_per_step[0]), rel=1e-12)
    assert found.memory_bytes_by_stage == tuple(int(size) for size in uniform.memory_bytes_by_stage[0, :pp])


def test_chains_of_unequal_speed_end_when_a_run_of_every_pass_ends() -> None:
    train = train_spec()
    fast, slow = ("a100-40", 5), ("v100-16", 3)
    stages = tuple(
        Stage(
            layer_count=count,
            replicas=tuple(
                Replica(gpu_type=name, zone="east", micro_batch_count=batches)
                for name, batches in (fast, fast, slow, slow)
            ),
        )
        for count in (5, 3)
    )
    judge = Judge(train=train, offer=offer_of(("a100-40", "east", 4), ("v100-16", "east", 4)))
    plan = ParallelPlan(stages=stages, micro_batch_size=2)

    closed = judge.judge(plan).estimate.iter_time_s

    assert unsupported(train, plan) is None
    assert judge.simulate_s(plan) <= closed * (1 + 1e-9)
    assert closed <= judge.simulate_s(plan) * 1.27  # what the closed form promises for unequal stages


def test_stages_with_unequal_replicas_are_judged_by_running_them() -> None:
    train = train_spec()
    wide, narrow = (Replica(gpu_type="a100-40"),) * 3, (Replica(gpu_type="a100-40", tp=2),)
    plan = ParallelPlan(stages=(Stage(layer_count=5, replicas=wide), Stage(layer_count=3, replicas=narrow)))
    judge = Judge(train=train, offer=offer_of(("a100-40", "east", 8)))

    assert judge.judge(plan).estimate.iter_time_s == judge.simulate_s(plan)


def test_a_slow_link_between_zones_costs_time_and_money() -> None:
    train = train_spec()
    plan = ParallelPlan(
        stages=tuple(
            Stage(layer_count=4, replicas=(Replica(gpu_type="a100-40", zone=zone),) * 2) for zone in ("east", "west")
        )
    )
    near = ZoneLinks(tiers={("east", "west"): Tier(bandwidth_bytes_per_s=1e12, latency_s=1e-6)})
    offer = offer_of(("a100-40", "east", 2), ("a100-40", "west", 2))

    far, close = evaluate_plan(train, plan, offer, FAR), evaluate_plan(train, plan, offer, near)

    sent_bytes = 2 * 32 * (256 * 256 * 2)  # there and back, 32 micro-batches of positions x hidden in bf16
    assert far.transfer_usd == pytest.approx(sent_bytes * 2e-11)
    assert close.transfer_usd == 0
    assert far.estimate.iter_time_s > close.estimate.iter_time_s


def test_what_does_not_fit_is_refused_with_numbers() -> None:
    train = train_spec(hidden=8192, layers=4)
    plan = ParallelPlan.uniform(layer_count=4)

    refusal = evaluate_plan(train, plan, offer_of(("v100-16", "east", 1))).refusal
    too_many = evaluate_plan(train_spec(), ParallelPlan.uniform(layer_count=8, dp=4), offer_of(("v100-16", "east", 2)))

    assert refusal is not None
    assert refusal.code is ReasonCode.MEMORY
    assert refusal.numbers["needed_gib"] > refusal.numbers["capacity_gib"]
    assert too_many.refusal is not None
    assert too_many.refusal.code is ReasonCode.INSUFFICIENT_GPUS


def test_an_answer_keeps_its_limits_and_is_what_the_judge_says() -> None:
    train, offer = train_spec(), offer_of(("a100-40", "east", 4), ("v100-16", "east", 4))

    found = search(train, offer)
    cheap = search(train, offer, objective=Objective.COST)

    assert found.plan is not None
    assert found.estimate is not None
    assert cheap.estimate is not None
    assert unsupported(train, found.plan) is None
    assert found.bound <= found.score == found.estimate.iter_time_s
    assert cheap.bound <= cheap.score == cheap.estimate.usd_per_step <= found.estimate.usd_per_step
    again = evaluate_plan(train, found.plan, offer)
    assert again.refusal is None
    assert again.estimate.iter_time_s == pytest.approx(found.score, rel=0.02)


def test_constraints_bind() -> None:
    train, offer = train_spec(), offer_of(("a100-40", "east", 4), ("v100-16", "east", 4))
    fast = search(train, offer, space=SMALL)
    cheap = search(train, offer, objective=Objective.COST, space=SMALL)
    assert fast.estimate is not None
    assert cheap.estimate is not None
    budget = (fast.estimate.usd_per_step + cheap.estimate.usd_per_step) / 2
    limit_s = (fast.estimate.iter_time_s * cheap.estimate.iter_time_s) ** 0.5

    within = search(train, offer, constraints=Constraints(usd_per_step_max=budget), space=SMALL)
    quick = search(
        train,
        offer,
        objective=Objective.COST,
        constraints=Constraints(deadline_s=100 * limit_s, steps=100),
        space=SMALL,
    )

    assert within.estimate is not None
    assert within.estimate.usd_per_step <= budget
    assert quick.estimate is not None
    assert quick.estimate.iter_time_s <= limit_s
    assert quick.score >= cheap.score * (1 - 1e-9)


@pytest.mark.parametrize("share", [1.05, 1.3])
def test_what_is_cheapest_in_time_is_known_closely(share: float) -> None:
    train, offer = train_spec(hidden=1024, batch=64), offer_of(("a100-40", "east", 8), ("v100-16", "east", 8))
    fast = search(train, offer, space=SMALL)
    hurry = Constraints(steps_per_s_min=1.0 / (share * fast.score))

    found = search(train, offer, objective=Objective.COST, constraints=hurry, space=SMALL)

    assert found.estimate is not None
    assert fast.estimate is not None
    assert found.estimate.iter_time_s <= share * fast.score
    assert found.score <= fast.estimate.usd_per_step
    assert found.gap <= 0.05


def test_constraints_that_no_plan_keeps_are_told_with_what_would_work() -> None:
    train, offer = train_spec(), offer_of(("a100-40", "east", 4), ("h100", "east", 4))
    fast = search(train, offer, space=SMALL)
    cheap = search(train, offer, objective=Objective.COST, space=SMALL)
    assert fast.estimate is not None
    assert cheap.estimate is not None
    assert cheap.estimate.usd_per_step < fast.estimate.usd_per_step * 0.99

    with pytest.raises(InfeasibleError) as hasty:
        search(train, offer, constraints=Constraints(steps_per_s_min=1e9), space=SMALL)
    with pytest.raises(InfeasibleError) as mean:
        search(train, offer, constraints=Constraints(usd_per_step_max=1e-12, deadline_s=1e-9, steps=10), space=SMALL)
    both = Constraints(usd_per_step_max=cheap.estimate.usd_per_step * 1.001, steps_per_s_min=0.999 / fast.score)
    with pytest.raises(InfeasibleError) as contrary:
        search(train, offer, constraints=both, space=SMALL)

    assert f"at most {1 / fast.score:.4g} steps/s" in hasty.value.fix
    assert f"at least {cheap.score:.4g} USD a step and a deadline of at least {10 * fast.score:.4g} s" in mean.value.fix
    assert re.search(r"budget of at least [0-9.e-]+ USD a step or at most [0-9.]+ steps/s", contrary.value.fix)


def test_a_job_that_fits_nowhere_says_why_whatever_it_may_cost() -> None:
    train = train_spec(hidden=8192, layers=16)

    found = search(train, offer_of(("t4", "east", 1)), constraints=Constraints(usd_per_step_max=1.0))

    assert found.plan is None
    assert found.reasons


def test_what_only_the_worker_lacks_can_be_planned_and_nothing_else() -> None:
    offer, beyond = offer_of(("a100-40", "east", 4)), replace(SMALL, allow_unsupported=True)
    half = train_spec().model_copy(update={"precision": "fp16"})
    endless = train_spec(layers=PARTS_MAX + 1)

    assert [one.code for one in search(half, offer, space=SMALL).reasons] == [ReasonCode.UNSUPPORTED]
    assert search(half, offer, space=beyond).plan is not None
    assert [one.code for one in search(endless, offer, space=beyond).reasons] == [ReasonCode.UNSUPPORTED]


def test_a_far_zone_is_left_alone() -> None:
    found = search(train_spec(), offer_of(("a100-40", "east", 4), ("a100-40", "west", 4)), FAR)

    assert found.plan is not None
    assert len({replica.zone for stage in found.plan.stages for replica in stage.replicas}) == 1
    assert found.plan.gpu_count <= 4


def test_dear_gpus_are_left_alone() -> None:
    train, offer = train_spec(), offer_of(("a100-40", "east", 4), ("v100-16", "east", 4))
    free = dict.fromkeys(offer, 0.0)

    def value(iter_time_s: float) -> float:
        return 1.0 / iter_time_s

    best = best_column(train, offer, free, value, space=SMALL)
    dear = best_column(train, offer, {**free, ("a100-40", "east"): 1e6}, value, space=SMALL)

    assert best.plan is not None
    assert dear.plan is not None
    assert dear.estimate is not None
    assert {replica.gpu_type for stage in dear.plan.stages for replica in stage.replicas} == {"v100-16"}
    assert dear.bound <= dear.score == pytest.approx(-value(dear.estimate.iter_time_s))
    assert best.score <= dear.score


def test_a_stage_that_is_not_the_slowest_is_worth_shortening() -> None:
    """The design's counter-example: with two micro-batches the sum of the stages counts as much as the slowest."""
    train = train_spec(layers=2, hidden=4096, batch=2)
    joined = replace(TYPES["a100-40"], link_bandwidth_bytes_per_s=1e14, link_latency_s=0.0)
    offer = {
        **offer_of(("v100-16", "east", 1)),
        ("a100-40", "east"): Offered(gpu_type=joined, gpu_count=2, gpus_per_node=2),
    }
    slow = Stage(layer_count=1, replicas=(Replica(gpu_type="v100-16", zone="east"),))
    judge = Judge(train=train, offer=offer)

    def with_tp(tp: int) -> float:
        last = Stage(layer_count=1, replicas=(Replica(gpu_type="a100-40", zone="east", tp=tp),))
        return judge.judge(ParallelPlan(stages=(slow, last))).estimate.iter_time_s

    found = search(train, offer, space=Space(micro_batch_max=1))

    assert with_tp(2) < with_tp(1)  # the first stage, on the V100, is the slowest with either
    assert found.score <= with_tp(2)


def test_bad_questions_say_what_is_wrong() -> None:
    train, offer = train_spec(), offer_of(("a100-40", "east", 4))
    with pytest.raises(SpecError, match="at least one GPU type"):
        search(train, {})
    with pytest.raises(SpecError, match="no link between zones east and west"):
        search(train, offer_of(("a100-40", "east", 4), ("a100-40", "west", 4)))
    with pytest.raises(SpecError, match=r"missing.*a100-40/east"):
        best_column(train, offer, {}, lambda iter_time_s: -iter_time_s)
    with pytest.raises(SpecError, match="deadline needs the number of steps"):
        Constraints(deadline_s=1.0)
    with pytest.raises(SpecError, match="wants h100"):
        evaluate_plan(train, ParallelPlan(stages=(Stage(layer_count=8, replicas=(Replica(gpu_type="h100"),)),)), offer)
