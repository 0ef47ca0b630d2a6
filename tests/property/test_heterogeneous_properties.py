"""What must hold of plans over mixed GPUs whatever the job: memory, links, depth of pipelines, zones."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations_with_replacement, product

from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.job import ModelFamily, ModelSpec, TrainSpec
from arena.domain.parallel import ParallelPlan, Replica, Stage
from arena.planner.communication import Tier
from arena.planner.hardware import catalog
from arena.planner.heterogeneous.judge import Judge, evaluate_plan
from arena.planner.heterogeneous.offer import Offer, Offered, Space, ZoneLinks
from arena.planner.heterogeneous.search import search

TYPES = catalog()
SPACE = Space(pp_max=3, tp_max=2, micro_batch_max=2, recompute=False)
ZONES = (("a100-40", "east"), ("v100-16", "west"))


def train_of(*, layers: int, hidden: int, batch: int) -> TrainSpec:
    model = ModelSpec(family=ModelFamily.GPT, layers=layers, hidden=hidden, heads=8, vocab_size=1024, seq_len=512)
    return TrainSpec(model=model, precision="bf16", global_batch=batch)


def offer_of(*parts: tuple[str, str, int]) -> Offer:
    return {
        (name, zone): Offered(gpu_type=TYPES[name], gpu_count=count, gpus_per_node=min(2, count))
        for name, zone, count in parts
    }


def links_of(gb_per_s: float) -> ZoneLinks:
    return ZoneLinks(tiers={("east", "west"): Tier(bandwidth_bytes_per_s=gb_per_s * 1e9, latency_s=1e-4)})


def trains() -> st.SearchStrategy[TrainSpec]:
    return st.builds(
        train_of, layers=st.integers(3, 6), hidden=st.sampled_from((512, 2048)), batch=st.sampled_from((4, 12))
    )


def mixed_plans(layers: int) -> st.SearchStrategy[ParallelPlan]:
    """Chains over two zones, cut anywhere."""

    def plan(cut: int, chains: list[tuple[int, int]]) -> ParallelPlan:
        def replicas(stage: int) -> tuple[Replica, ...]:
            return tuple(Replica(gpu_type=ZONES[chain[stage]][0], zone=ZONES[chain[stage]][1]) for chain in chains)

        counts = [cut, layers - cut]
        stages = [Stage(layer_count=count, replicas=replicas(at)) for at, count in enumerate(counts) if count]
        return ParallelPlan(stages=tuple(stages))

    chain = st.tuples(st.integers(0, 1), st.integers(0, 1))
    return st.builds(plan, st.integers(1, layers), st.lists(chain, min_size=1, max_size=3))


@settings(max_examples=8, deadline=None, derandomize=True)
@given(train=trains(), more_gib=st.integers(1, 64))
def test_more_memory_never_makes_a_plan_or_a_search_worse(train: TrainSpec, more_gib: int) -> None:
    offer = offer_of(("a100-40", "east", 2), ("v100-16", "east", 2))
    tight = {key: replace(one, gpu_type=replace(one.gpu_type, memory_bytes=8 * 2**30)) for key, one in offer.items()}
    wide = {
        key: replace(one, gpu_type=replace(one.gpu_type, memory_bytes=(8 + more_gib) * 2**30))
        for key, one in offer.items()
    }

    before, after = search(train, tight, space=SPACE), search(train, wide, space=SPACE)

    if before.plan is not None:
        assert evaluate_plan(train, before.plan, wide).refusal is None
        assert after.score <= before.score * 1.01
        assert after.bound <= before.score * (1 + 1e-9)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data(), train=trains(), slow=st.floats(0.01, 10), factor=st.floats(1, 100))
def test_a_faster_link_never_slows_a_plan(data: st.DataObject, train: TrainSpec, slow: float, factor: float) -> None:
    plan = data.draw(mixed_plans(train.model.layers))
    offer = offer_of(("a100-40", "east", 6), ("v100-16", "west", 6))

    near, far = (evaluate_plan(train, plan, offer, links_of(one)).estimate for one in (slow * factor, slow))

    assert near.iter_time_s <= far.iter_time_s * (1 + 1e-12)
    assert near.memory_bytes_by_stage == far.memory_bytes_by_stage


@settings(max_examples=6, deadline=None, derandomize=True)
@given(train=trains(), slow=st.floats(0.05, 1), factor=st.floats(1, 50))
def test_a_faster_link_never_slows_the_best_plan(train: TrainSpec, slow: float, factor: float) -> None:
    offer = offer_of(("a100-40", "east", 2), ("a100-80", "west", 2))

    far, near = (search(train, offer, links_of(one), space=SPACE) for one in (slow, slow * factor))

    assert near.score <= far.score * 1.01
    assert near.bound <= far.score * (1 + 1e-9)


def cuts_of(layers: int) -> Iterator[tuple[int, ...]]:
    for counts in product(range(1, layers + 1), repeat=3):
        if sum(counts) == layers:
            yield counts
    for first in range(1, layers):
        yield (first, layers - first)
    yield (layers,)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(hidden=st.sampled_from((512, 2048)), batch=st.integers(2, 4), gb_per_s=st.sampled_from((0.01, 1.0, 100.0)))
def test_over_two_zones_no_enumerated_plan_is_much_better_nor_below_the_bound(
    hidden: int, batch: int, gb_per_s: float
) -> None:
    train, links = train_of(layers=4, hidden=hidden, batch=batch), links_of(gb_per_s)
    offer = offer_of(("a100-40", "east", 2), ("v100-16", "west", 1))
    judge = Judge(train=train, offer=offer, links=links)
    degrees = [(*ZONES[0], 1), (*ZONES[0], 2), (*ZONES[1], 1)]
    kinds = [Replica(gpu_type=name, zone=zone, tp=tp) for name, zone, tp in degrees]
    best = float("inf")
    for counts, size in product(cuts_of(4), (1, 2)):
        chains = list(product(kinds, repeat=len(counts)))
        for dp in (1, 2, 3):
            for some in combinations_with_replacement(chains, dp):
                stages = tuple(
                    Stage(layer_count=count, replicas=tuple(chain[at] for chain in some))
                    for at, count in enumerate(counts)
                )
                plan = ParallelPlan(stages=stages, micro_batch_size=size)
                if plan.gpu_count > 3 or dp * size > batch:
                    continue
                judged = judge.judge(plan)
                if judged.refusal is None:
                    best = min(best, judged.estimate.iter_time_s)

    found = search(train, offer, links, space=SPACE)

    assert found.score <= best * 1.01
    assert found.bound <= best * (1 + 1e-9)
