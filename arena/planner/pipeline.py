"""Closed forms of the pipeline schedules, for stages of unequal length. Pure: no I/O, no clock.

``stage_s`` is the time of one micro-batch, forward and backward, on each stage: ``[n, p]``, zeros beyond a plan's
depth. Against an event simulation of 1F1B (see the tests) the forms are exact for equal stages. For unequal ones they
are upper bounds: up to 16 % above it for stages within 1.5x of each other, 27 % at worst in 60,000 random pipelines.
"""

from __future__ import annotations

import numpy as np

from arena.planner.candidates import Floats, Ints

BACKWARD_SHARE = 2.0 / 3.0
"""Share of a micro-batch's time that is backward, as backward costs twice forward."""


def pipeline_time_s(stage_s: Floats, micro_batch_count: Ints, virtual_stage_count: Ints) -> Floats:
    """Return the time from the first forward to the last backward, ``[n]``.

    1F1B and GPipe: the busiest stage works through all its micro-batches, the others add one warm-up and drain.
    Interleaving divides the latter by the model chunks of each rank.

    Args:
        stage_s: Time of one micro-batch, ``[n, p]``.
        micro_batch_count: Of the busiest replica of each stage, ``[n, p or 1]``.
        virtual_stage_count: Chunks of each rank, ``[n]``.
    """
    busy_s = micro_batch_count * stage_s
    busiest = busy_s.argmax(axis=1)[:, None]
    slowest_s = np.take_along_axis(stage_s, busiest, axis=1)[:, 0]
    bubble_s = (stage_s.sum(axis=1) - slowest_s) / virtual_stage_count
    total_s: Floats = np.take_along_axis(busy_s, busiest, axis=1)[:, 0] + bubble_s
    return total_s


def step_end_s(pipeline_s: Floats, stage_s: Floats, after_s: Floats) -> Floats:
    """Return when the last stage is done with what follows its last backward, ``[n]``.

    Stage i has drained while the stages before it still run their last backward; its synchronisation and update
    (``after_s``, ``[n, p]``) overlap with those, and with nothing of its own.
    """
    earlier_s = np.cumsum(stage_s, axis=1) - stage_s
    end_s: Floats = (pipeline_s[:, None] - BACKWARD_SHARE * earlier_s + after_s).max(axis=1)
    return end_s
