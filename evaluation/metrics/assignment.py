"""Assign rows to columns of a cost matrix one-to-one, with the least sum of costs."""

import numpy as np
from numpy.typing import NDArray


def assign(costs: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return the pairs (row, column) of an assignment with the least sum of costs, by row.

    Hungarian algorithm with shortest augmenting paths, as ``scipy.optimize.linear_sum_assignment``,
    without its dependency. ``costs`` is [rows, columns], finite; min(rows, columns) pairs result.
    """
    rows, columns = costs.shape
    if rows > columns:
        return sorted((row, column) for column, row in assign(costs.T))
    of_row, of_column = np.zeros(rows + 1), np.zeros(columns + 1)  # potentials; index 0 is unused
    owner = np.zeros(columns + 1, dtype=np.int64)  # the row that has a column, from 1; 0: none
    for row in range(1, rows + 1):
        owner[0], column = row, 0
        shortest, before = np.full(columns + 1, np.inf), np.zeros(columns + 1, dtype=np.int64)
        used = np.zeros(columns + 1, dtype=np.bool_)
        while owner[column]:
            used[column] = True
            at = owner[column]
            reduced = costs[at - 1] - of_row[at] - of_column[1:]
            is_shorter = ~used[1:] & (reduced < shortest[1:])
            shortest[1:][is_shorter] = reduced[is_shorter]
            before[1:][is_shorter] = column
            nearest = int(np.where(used, np.inf, shortest)[1:].argmin()) + 1
            step = shortest[nearest]
            of_row[owner[used]] += step
            of_column[used] -= step
            shortest[~used] -= step
            column = nearest
        while column:
            owner[column] = owner[before[column]]
            column = before[column]
    return sorted((int(owner[c]) - 1, c - 1) for c in range(1, columns + 1) if owner[c])
