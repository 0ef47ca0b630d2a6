"""A model as a graph of its units, and what a cut between two of them sends on. Pure: no I/O, no clock.

Units are nodes in the order in which they run; an edge says that one works on another's output. In a chain each unit
works on the one before it. In an encoder-decoder all decoder layers work on the encoder's output as well, which then
crosses every later cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import networkx as nx

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Messages:
    """Elements per sample that cross the cut in front of each unit, and behind the last: ``[units + 1]``, zero there.

    Args:
        crossing: All that is sent.
        carried: Those among them that were made before the unit in front of the cut, which passes them on.
    """

    crossing: Floats
    carried: Floats


def chain_messages(outputs: Sequence[float]) -> Messages:
    """Return the messages of a model whose units each work on the one before: as from its graph, but faster."""
    crossing = np.zeros(len(outputs) + 1)
    crossing[1:-1] = outputs[:-1]
    return Messages(crossing=crossing, carried=np.zeros_like(crossing))


def layer_graph(outputs: Sequence[float], *, encoder_layers: int | None = None) -> nx.DiGraph[int]:
    """Return a model's units with what they put out, and which works on which.

    Args:
        outputs: Elements per sample of each unit: beginning, layers, ending.
        encoder_layers: Of an encoder-decoder; None makes a chain.
    """
    import networkx as nx  # noqa: PLC0415 - takes a quarter of a second, and few models branch

    graph: nx.DiGraph[int] = nx.path_graph(len(outputs), create_using=nx.DiGraph)
    nx.set_node_attributes(graph, dict(enumerate(outputs)), "elements")
    if encoder_layers is not None:
        graph.add_edges_from((encoder_layers, layer) for layer in range(encoder_layers + 1, len(outputs) - 1))
    return graph


def messages_of(graph: nx.DiGraph[int]) -> Messages:
    """Return what crosses each cut: the output of every unit in front of it that some unit behind it works on."""
    count = graph.number_of_nodes()
    crossing, carried = np.zeros(count + 1), np.zeros(count + 1)
    for unit in graph:
        users, elements = list(graph.successors(unit)), float(graph.nodes[unit]["elements"])
        if users:
            crossing[unit + 1 : max(users) + 1] += elements
            carried[unit + 2 : max(users) + 1] += elements
    return Messages(crossing=crossing, carried=carried)
