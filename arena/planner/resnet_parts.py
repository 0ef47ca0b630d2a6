"""The parts of residual networks of convolutions. Pure: no I/O, no clock."""

from __future__ import annotations

from arena.domain.job import ModelSpec
from arena.domain.parameters import ResidualBlock
from arena.planner.activations import Spread, kept_by_beginning, kept_by_block, working_set_of_block
from arena.planner.parts import ParameterCounts, Part, Product, Reductions


def stem(model: ModelSpec, parameters: ParameterCounts) -> Part:
    """Return what stands before the blocks."""
    outputs = float(model.hidden * (model.image_size or 0) ** 2)
    return Part(
        parameters=parameters,
        products=(Product(flops_per_sample=18.0 * model.channels * outputs, spread=Spread.WHOLE),),
        kept=kept_by_beginning(model),
        output_elements=outputs,
    )


def block_part(block: ResidualBlock, parameters: ParameterCounts) -> Part:
    """Return one block."""
    outer = float(block.input_channels * block.input_size**2)
    inner = float(block.output_channels * block.output_size**2)
    products = [
        Product(flops_per_sample=18.0 * block.input_channels * inner),
        Product(flops_per_sample=18.0 * block.output_channels * inner),
    ]
    if block.has_projection:
        products.append(Product(flops_per_sample=2.0 * block.input_channels * inner, spread=Spread.WHOLE))
    return Part(
        parameters=parameters,
        products=tuple(products),
        kept=kept_by_block(block),
        working=(working_set_of_block(block),),
        kernel_count=8,
        reductions=Reductions(forward_elements=inner, forward_count=1, backward_elements=outer, backward_count=1),
        input_elements=outer,
        output_elements=inner,
        is_layer=True,
    )
