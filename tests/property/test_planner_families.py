"""What holds of every model, of those too that the worker does not train: times scale as they must, layers sum up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from arena.domain.allocation import GpuGroup
from arena.domain.capability import unsupported
from arena.domain.cluster import GpuType
from arena.domain.job import ModelFamily, ParallelLimits, TrainSpec
from arena.domain.parallel import Recompute
from arena.domain.parameters import boundary_shape, parameters_of
from arena.planner.candidates import Candidates, candidate_of
from arena.planner.cost import Estimates, evaluate
from arena.planner.hardware import catalog
from arena.planner.layout_space import LayoutSpace
from arena.planner.model import model_cost
from arena.planner.source import PlannerGridSource
from arena.units import GIB
from tests.builders import shape, train_spec
from tests.property.planned_strategies import planned_trains
from tests.property.train_strategies import trains

sized = settings(max_examples=40, deadline=None)
every_train = trains | planned_trains
groups = st.sampled_from([(1,), (2,), (1, 1), (4,), (2, 2), (8,), (4, 4)])
RATES = ("memory_bandwidth_bytes_per_s", "link_bandwidth_bytes_per_s", "network_bandwidth_bytes_per_s")
DELAYS = ("link_latency_s", "network_latency_s", "launch_latency_s")


def price(train: TrainSpec, gpu_type: GpuType, counts: tuple[int, ...]) -> Estimates:
    group = GpuGroup.of(gpu_type.name, counts)
    limits = ParallelLimits(zero=(0, 1, 2, 3), schedules=("1f1b", "gpipe", "interleaved"))
    layouts = LayoutSpace(train=train, limits=limits).layouts(group)
    assume(len(layouts))
    return evaluate(train, gpu_type, group, layouts.candidates())


def scaled(gpu_type: GpuType, *, rates: float = 1.0, peaks: float = 1.0, delays: float = 1.0) -> GpuType:
    changes = {name: getattr(gpu_type, name) * rates for name in RATES}
    changes |= {name: getattr(gpu_type, name) * delays for name in DELAYS}
    peak = {precision: flops * peaks for precision, flops in gpu_type.peak_flops_per_s.items()}
    return replace(gpu_type, peak_flops_per_s=peak, **changes)


@sized
@given(train=every_train)
def test_parts_sum_to_the_model_and_its_parameters(train: TrainSpec) -> None:
    spec, cost = train.model, model_cost(train.model)
    every = parameters_of(spec)
    assert len({parameter.name for parameter in every}) == len(every)
    assert cost.parameter_count == sum(parameter.element_count for parameter in every)
    for layer in range(spec.layers):
        own = [parameter for parameter in every if parameter.place == layer]
        assert cost.layer(layer).parameters.total == sum(parameter.element_count for parameter in own)
    units = [cost.beginning, *map(cost.layer, range(spec.layers)), cost.ending]
    assert np.isclose(cost.flops_per_sample, sum(part.flops_per_sample for part in units))
    totals = cost.cumulative(part.flops_per_sample for part in cost.parts)
    assert np.isclose(totals[-1], cost.flops_per_sample)


@sized
@given(train=every_train)
def test_a_tensor_is_kept_once_and_more_recomputation_keeps_no_more(train: TrainSpec) -> None:
    parts = model_cost(train.model).parts
    assert all(len({tensor.name for tensor in part.kept}) == len(part.kept) for part in parts)
    for part in (one for one in parts if one.is_layer):
        kept = {
            mode: sum(tensor.elements * (tensor.element_bytes or 2) for tensor in part.kept if mode in tensor.modes)
            for mode in Recompute
        }
        assert kept[Recompute.FULL] <= kept[Recompute.SELECTIVE] <= kept[Recompute.NONE]


@sized
@given(train=every_train)
def test_what_crosses_a_cut_of_a_chain_has_the_shape_that_stages_send(train: TrainSpec) -> None:
    spec, messages = train.model, model_cost(train.model).messages
    assume(spec.family is not ModelFamily.T5)
    assert messages.crossing[0] == messages.crossing[-1] == 0
    for layer in range(spec.layers + 1):
        assert messages.crossing[layer + 1] == np.prod(boundary_shape(spec, layer))
    assert not messages.carried.any()


@sized
@given(train=every_train, name=st.sampled_from(sorted(catalog())), counts=groups, factor=st.floats(1.1, 100.0))
def test_a_machine_that_does_everything_faster_takes_as_much_less(
    train: TrainSpec, name: str, counts: tuple[int, ...], factor: float
) -> None:
    gpu_type = catalog()[name]
    before = price(train, gpu_type, counts)
    after = price(train, scaled(gpu_type, rates=factor, peaks=factor, delays=1 / factor), counts)
    # A link that is faster by so much is no bus any more, and reaches another share of its bandwidth.
    assume(gpu_type.link_bandwidth_bytes_per_s > 32e9 or sum(counts) == 1)
    assert np.allclose(after.iter_time_s * factor, before.iter_time_s, rtol=1e-9)
    assert np.array_equal(after.memory_bytes_by_stage, before.memory_bytes_by_stage)


@sized
@given(train=every_train, name=st.sampled_from(sorted(catalog())), counts=groups, factor=st.floats(1.0, 100.0))
def test_faster_computing_helps_and_by_no_more_than_it_is_faster(
    train: TrainSpec, name: str, counts: tuple[int, ...], factor: float
) -> None:
    before = price(train, catalog()[name], counts)
    after = price(train, scaled(catalog()[name], peaks=factor), counts)
    assert np.all(after.iter_time_s <= before.iter_time_s * (1 + 1e-12))
    assert np.all(after.iter_time_s >= before.iter_time_s / factor * (1 - 1e-12))


@sized
@given(train=every_train, counts=groups, factor=st.floats(1.0, 100.0))
def test_faster_links_never_slow_any_model(train: TrainSpec, counts: tuple[int, ...], factor: float) -> None:
    gpu_type = catalog()["a100-80"]
    before = price(train, gpu_type, counts)
    for link in RATES:
        after = price(train, replace(gpu_type, **{link: getattr(gpu_type, link) * factor}), counts)
        assert np.all(after.iter_time_s <= before.iter_time_s * (1 + 1e-12))


@sized
@given(train=every_train, counts=groups, index=st.integers(0, 10_000))
def test_twice_the_batch_takes_longer_and_at_most_twice_as_long(
    train: TrainSpec, counts: tuple[int, ...], index: int
) -> None:
    """Of one plan: what is done once a step, and the pipeline's filling, is not done twice."""
    gpu_type, group = catalog()["h100"], GpuGroup.of("h100", counts)
    layouts = LayoutSpace(train=train, limits=ParallelLimits(zero=(0, 1, 3), schedules=("1f1b", "gpipe"))).layouts(
        group
    )
    assume(len(layouts))
    plan = layouts.plan(index % len(layouts))
    # A batch that replicas share evenly: of another, twice as much may be less than twice the rounds.
    batch = len(plan.stages[0].replicas) * plan.micro_batch_size * (1 + index % 4)
    times = [
        float(evaluate(train, gpu_type, group, candidate_of(plan, size)).iter_time_s[0]) for size in (batch, 2 * batch)
    ]
    assert times[0] < times[1] <= 2 * times[0] * (1 + 1e-12)


@sized
@given(train=every_train)
def test_one_layer_more_costs_what_the_one_before_did(train: TrainSpec) -> None:
    """Of models whose layers are alike: computing grows in equal steps, and the rest never shrinks."""
    spec = train.model
    assume(spec.family not in {ModelFamily.WIDE_RESNET, ModelFamily.T5} and spec.variant.window_period == 1)
    group = GpuGroup.of("h100", [2])
    times, memory = [], []
    for layers in (spec.layers, spec.layers + 1, spec.layers + 2):
        grown = train.model_copy(update={"model": spec.model_copy(update={"layers": layers})})
        plan = layouts_of_two(grown)
        found = evaluate(grown, catalog()["h100"], group, plan)
        times.append(found.breakdown_s["compute"])
        memory.append(found.memory_bytes_by_stage.max(axis=1))
    assert np.allclose(times[2] - times[1], times[1] - times[0], rtol=1e-6)
    assert np.all(times[1] > times[0])
    assert np.all(memory[2] >= memory[1])
    assert np.all(memory[1] >= memory[0])


def layouts_of_two(train: TrainSpec) -> Candidates:
    limits = ParallelLimits(pp_max=1, zero=(0,))
    layouts = LayoutSpace(train=train, limits=limits).layouts(GpuGroup.of("h100", [2]))
    assume(len(layouts))
    return layouts.candidates()


@settings(max_examples=20, deadline=None)
@given(train=planned_trains, memory_gib=st.floats(1.2, 80.0), more=st.floats(1.0, 10.0))
def test_more_memory_never_takes_a_group_away(train: TrainSpec, memory_gib: float, more: float) -> None:
    spec, cluster = train_spec().model_copy(update={"train": train}), shape(("a100-80", 2, 2))
    grids = []
    for size in (memory_gib, memory_gib * more):
        row = replace(catalog()["a100-80"], memory_bytes=int(size * GIB))
        grids.append(PlannerGridSource(gpu_types={row.name: row}, beyond_worker=True).grid(spec, cluster))
    small, large = grids
    assert {cell.group for cell in small.cells} <= {cell.group for cell in large.cells}
    assert all(cell.best.plan is not None for cell in large.cells)


@settings(max_examples=20, deadline=None)
@given(train=planned_trains, count=st.sampled_from([1, 2, 4, 8]))
def test_every_layout_is_one_that_some_program_could_run(train: TrainSpec, count: int) -> None:
    layouts = LayoutSpace(train=train, limits=ParallelLimits()).layouts(GpuGroup.of("a100-80", [count]))
    plans = [layouts.plan(index) for index in range(0, len(layouts), 7)]
    assert [unsupported(train, plan, beyond_worker=True) for plan in plans] == [None] * len(plans)


@settings(max_examples=20, deadline=None)
@given(train=planned_trains)
def test_cells_say_what_the_cost_model_says_of_their_plans(train: TrainSpec) -> None:
    spec = train_spec().model_copy(update={"train": train})
    for cell in PlannerGridSource(beyond_worker=True).grid(spec, shape(("a100-80", 2, 2))).cells:
        for one in (cell.best, *cell.others[-1:]):
            assert one.plan is not None
            found = evaluate(train, catalog()["a100-80"], cell.group, candidate_of(one.plan, train.global_batch))
            assert np.isclose(found.iter_time_s[0], one.estimate.iter_time_s, rtol=1e-9)
            assert np.allclose(found.memory_bytes_by_stage[0], one.estimate.memory_bytes_by_stage, atol=1)


@settings(max_examples=20, deadline=None)
@given(train=planned_trains)
def test_the_grid_of_the_worker_has_none_of_these_models_and_says_why(train: TrainSpec) -> None:
    spec = train_spec().model_copy(update={"train": train})
    assume(train.model.variant.attention_window is None or train.model.variant.attention_window < train.model.seq_len)
    grid = PlannerGridSource().grid(spec, shape(("a100-80", 1, 2)))
    assert not grid.cells
    assert all("the worker" in str(one.reason) for one in grid.infeasible)
