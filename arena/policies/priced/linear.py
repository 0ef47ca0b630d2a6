"""Prices of rows by linear programming, and branch and bound, both with HiGHS. Pure: no I/O, no clock.

A problem of moderate size is handed over whole. For larger ones the dual, a function of the prices alone, is minimised
by cutting planes within a box that grows and shrinks: column generation, seen from its dual side.
"""

from __future__ import annotations

from typing import Any

import highspy
import numpy as np

from arena.policies.priced.columns import Columns, Floats, Ints, Priced, priced_at

WHOLE_COLUMNS_MAX = 4_000

CUTS_MAX = 60
TOLERANCE = 2e-4
"""Relative distance to the lowest bound at which cutting planes stop."""

PATIENCE = 7
"""Cuts that may together bring less than half of that before they stop as well, if the model's lowest point is near."""

_NEAR = 0.005

_BRANCHING = {
    "mip_heuristic_effort": 0.0,
    "mip_heuristic_run_feasibility_jump": False,
    "mip_heuristic_run_rins": False,
    "mip_heuristic_run_rens": False,
    "mip_heuristic_run_root_reduced_cost": False,
    "mip_allow_restart": False,
    "mip_detect_symmetry": False,
}
"""Branching begins from a good choice: what looks for a first one, or anew, takes most of the time for nothing."""


def best_prices(
    columns: Columns,
    supply: Floats,
    guess: Floats,
    *,
    start: Ints | None = None,
    whole_columns_max: int = WHOLE_COLUMNS_MAX,
) -> Priced:
    """Return prices with a low bound.

    Args:
        guess: Prices to begin with, of the right order of size.
        start: A choice that fits, from which to begin; there may be none.
        whole_columns_max: Problems with more columns are priced by cutting planes.
    """
    if not (columns.value > 0.0).any():
        return priced_at(columns, supply, np.zeros(len(supply)))
    if len(columns.job) <= whole_columns_max:
        return priced_at(columns, supply, _dual_prices(columns, supply, start))
    return _by_cuts(columns, supply, guess)


def _dual_prices(columns: Columns, supply: Floats, start: Ints | None) -> Floats:
    """Return the row duals of the whole relaxation."""
    solver = quiet_solver()
    solver.setOptionValue("presolve", "off")
    unit = float(columns.value.max())
    solver.passModel(_model(columns, np.arange(len(columns.job)), supply, unit))
    if start is not None:
        solver.setBasis(_basis(columns, len(supply), start))
    solver.run()
    duals = np.array(solver.getSolution().row_dual)[: len(supply)]
    return np.maximum(-duals * unit, 0.0)


def _basis(columns: Columns, row_count: int, start: Ints) -> Any:
    """Return the corner of the relaxation that a choice is."""
    lower, basic, upper = (getattr(highspy.HighsBasisStatus, name) for name in ("kLower", "kBasic", "kUpper"))
    column, row = [lower] * len(columns.job), [basic] * (row_count + columns.job_count)
    for job in np.flatnonzero(start >= 0).tolist():
        column[start[job]], row[row_count + job] = basic, upper
    basis = highspy.HighsBasis()
    basis.col_status, basis.row_status, basis.valid = column, row, True
    return basis


def _by_cuts(columns: Columns, supply: Floats, guess: Floats) -> Priced:
    unit = max(float(guess.max(initial=0.0)), float(columns.value.max()) / max(float(supply.sum()), 1.0) * 1e-3)
    best = here = priced_at(columns, supply, guess)
    radius = np.maximum(guess, 0.1 * unit) * 0.5
    master = _Master(supply, unit)
    bounds: list[float] = []
    for _ in range(CUTS_MAX):
        master.cut(here, columns.used(here.best))
        low, high = np.maximum(best.prices - radius, 0.0), best.prices + radius
        prices, floor = master.lowest(low, high)
        at_edge = ((prices <= low) & (low > 0.0)) | (prices >= high)
        if best.bound - floor <= TOLERANCE * best.bound and not at_edge.any():
            break
        here = priced_at(columns, supply, prices)
        if here.bound < best.bound:
            best = here
            radius = np.where(at_edge, radius * 2.0, radius)
        else:
            radius = np.where(at_edge & (best.bound - floor <= TOLERANCE * best.bound), radius * 2.0, radius * 0.7)
        bounds.append(best.bound)
        recent = bounds[-PATIENCE - 1 :]
        is_near = best.bound - floor <= _NEAR * best.bound
        if is_near and len(recent) > PATIENCE and recent[0] - best.bound <= 0.5 * TOLERANCE * best.bound:
            break
    return best


class _Master:
    """The cutting-plane model of the dual; prices in units of ``unit``."""

    def __init__(self, supply: Floats, unit: float) -> None:
        self._rows, self._unit = len(supply), unit
        self._at = np.arange(self._rows + 1, dtype=np.int32)
        self._solver = quiet_solver()
        self._solver.addVars(self._rows + 1, np.zeros(self._rows + 1), np.full(self._rows + 1, highspy.kHighsInf))
        self._solver.changeColsCost(self._rows + 1, self._at, np.r_[supply, 1.0])

    def cut(self, priced: Priced, used: Floats) -> None:
        """Add what is known at some prices: profits are convex in them, with the demand as slope."""
        constant = (float(priced.profit.sum()) + float(used @ priced.prices)) / self._unit
        self._solver.addRow(constant, highspy.kHighsInf, self._rows + 1, self._at, np.r_[used, 1.0])

    def lowest(self, low: Floats, high: Floats) -> tuple[Floats, float]:
        """Return the lowest point of the model within a box, with its height."""
        rows = self._rows
        self._solver.changeColsBounds(rows, self._at[:rows], low / self._unit, high / self._unit)
        self._solver.run()
        point = np.array(self._solver.getSolution().col_value)
        height = self._solver.getInfo().objective_function_value
        return np.clip(point[:rows] * self._unit, low, high), height * self._unit


def branched(columns: Columns, supply: Floats, keep: Ints, start: Ints, *, nodes: int, gap: float) -> Ints | None:
    """Return the best choice found of some columns, None where there was none.

    Args:
        keep: The columns that are looked at, ascending.
        start: A choice of them that fits.
        nodes: Nodes at most.
        gap: Relative gap that is good enough.
    """
    solver = quiet_solver()
    solver.setOptionValue("mip_max_nodes", nodes)
    solver.setOptionValue("mip_rel_gap", gap)
    for name, value in _BRANCHING.items():
        solver.setOptionValue(name, value)
    model = _model(columns, keep, supply, float(columns.value.max()))
    model.integrality_ = [highspy.HighsVarType.kInteger] * len(keep)
    solver.passModel(model)
    known = highspy.HighsSolution()
    known.col_value = np.isin(keep, start).astype(np.float64).tolist()
    solver.setSolution(known)
    solver.run()
    values = np.array(solver.getSolution().col_value)
    if len(values) != len(keep):
        return None
    chosen = np.full(columns.job_count, -1, dtype=np.intp)
    picked = keep[values > 0.5]
    chosen[columns.job[picked]] = picked
    return chosen if (columns.used(chosen) <= supply + 1e-6).all() else None


def _model(columns: Columns, keep: Ints, supply: Floats, unit: float) -> Any:
    """Return the relaxation over some columns: rows of supply, then one row a job; values in units of ``unit``."""
    job = columns.job[keep]
    is_next = job[1:] != job[:-1]
    number = np.r_[0, np.cumsum(is_next)]
    rows, count = len(supply), len(keep)
    height = rows + int(number[-1]) + 1
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = count, height
    model.col_cost_ = -columns.value[keep] / unit
    model.col_lower_, model.col_upper_ = np.zeros(count), np.ones(count)
    model.row_lower_ = np.full(height, -highspy.kHighsInf)
    model.row_upper_ = np.r_[supply, np.ones(height - rows)]
    _fill(model.a_matrix_, columns.usage[keep], rows + number)
    return model


def _fill(matrix: Any, usage: Floats, job_row: Ints) -> None:
    """Write the matrix column by column: what is used of the supply, then 1 in the job's row."""
    column, row = np.nonzero(usage)
    per_column = np.bincount(column, minlength=len(usage))
    ends = np.cumsum(per_column + 1)
    index, value = np.empty(ends[-1], dtype=np.int32), np.empty(ends[-1])
    index[ends - 1], value[ends - 1] = job_row, 1.0
    at = np.arange(len(column)) + column  # one entry of a job's row for each column before
    index[at], value[at] = row, usage[column, row]
    matrix.format_ = highspy.MatrixFormat.kColwise
    matrix.start_ = np.r_[0, ends].astype(np.int32)
    matrix.index_, matrix.value_ = index, value


class _Solver(highspy.Highs):
    """HiGHS without its callbacks, which nobody here uses and whose set-up prints a banner."""

    def enableCallbacks(self) -> None:  # noqa: N802 - HiGHS' name
        """Leave them off."""


def quiet_solver() -> Any:
    """Return HiGHS, silent and on one thread: the same input gives the same answer."""
    solver = _Solver()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("random_seed", 0)
    return solver
