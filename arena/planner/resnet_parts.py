"""The parts of residual networks of convolutions. Pure: no I/O, no clock."""

from __future__ import annotations

from arena.domain.job import ModelSpec
from arena.domain.parameters import ResidualBlock
from arena.planner.activations import Spread, kept_by_beginning, kept_by_block, working_set_of_block
from arena.planner.parts import ParameterCounts, Part, Product, Reductions


def stem(model: ModelSpec, parameters: ParameterCounts) -> Part:
    """Return what stands before the blocks."""
    size = model.image_size or 0
    if model.variant.bottleneck:
        # 7 x 7 with stride 2, and a pool that halves the image again.
        made, outputs = model.hidden // 4 * (size / 2.0) ** 2, model.hidden // 4 * (size / 4.0) ** 2
        flops = 2.0 * 49 * model.channels * made
    else:
        outputs = float(model.hidden * size**2)
        flops = 18.0 * model.channels * outputs
    return Part(
        parameters=parameters,
        products=(Product(flops_per_sample=flops, spread=Spread.WHOLE),),
        kept=kept_by_beginning(model),
        kernel_count=5 if model.variant.bottleneck else 2,
        output_elements=outputs,
    )


def block_part(block: ResidualBlock, parameters: ParameterCounts) -> Part:
    """Return one block."""
    outer = float(block.input_channels * block.input_size**2)
    outputs = float(block.output_channels * block.output_size**2)
    products = [Product(flops_per_sample=flops) for flops in _convolutions(block, outputs)]
    if block.has_projection:
        products.append(Product(flops_per_sample=2.0 * block.input_channels * outputs, spread=Spread.WHOLE))
    # Between the convolutions of a bottleneck, ranks that each have some channels sum up once more.
    between = float(block.inner_channels * block.output_size**2) if block.is_bottleneck else 0.0
    count = 1 + block.is_bottleneck
    return Part(
        parameters=parameters,
        products=tuple(products),
        kept=kept_by_block(block),
        working=(working_set_of_block(block),),
        kernel_count=10 if block.is_bottleneck else 8,
        reductions=Reductions(
            forward_elements=outputs + between,
            forward_count=count,
            backward_elements=outer + between,
            backward_count=count,
        ),
        input_elements=outer,
        output_elements=outputs,
        is_layer=True,
    )


def _convolutions(block: ResidualBlock, outputs: float) -> tuple[float, ...]:
    """Return the operations of a block's convolutions, without its shortcut's."""
    if not block.is_bottleneck:
        return 18.0 * block.input_channels * outputs, 18.0 * block.output_channels * outputs
    first, second = (float(block.inner_channels * size**2) for size in (block.input_size, block.output_size))
    return (
        2.0 * block.input_channels * first,
        18.0 * block.inner_channels * second,
        2.0 * block.inner_channels * outputs,
    )
