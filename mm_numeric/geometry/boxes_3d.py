"""Boxes in space: angles about the axes of the camera, rotation matrices, corners, projections.

Angles are in half turns (1 is 180 degrees), about x, then y, then z, as QwenLM/Qwen3-VL,
cookbooks/3d_grounding.ipynb (draw_3dbboxes) turns a box by an answer, and in this order as
facebookresearch/omni3d, cubercnn/util/math_util.py (euler2mat, mat2euler).
"""

from collections.abc import Mapping
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def rotation_matrices(half_turns: Floats) -> Floats:
    """Convert angles, [..., 3], to matrices, [..., 3, 3], whose columns are the axes of a box."""
    (cx, cy, cz), (sx, sy, sz) = (
        np.moveaxis(own(np.pi * half_turns), -1, 0) for own in (np.cos, np.sin)
    )
    rows = [
        [cz * cy, cz * sy * sx - sz * cx, cz * sy * cx + sz * sx],
        [sz * cy, sz * sy * sx + cz * cx, sz * sy * cx - cz * sx],
        [-sy, cy * sx, cy * cx],
    ]
    return np.moveaxis(np.array(rows), (0, 1), (-2, -1))


def half_turns_of(matrix: Floats) -> Floats:
    """Convert a rotation matrix, [3, 3], to angles, [3]: x and z from -1 to 1, y from -0.5 to 0.5.

    If y is 0.5 or -0.5, only the sum or the difference of x and z is determined, and z is 0.
    """
    across = np.hypot(matrix[0, 0], matrix[1, 0])
    y = np.arctan2(-matrix[2, 0], across)
    if across < 1e-6:
        return np.array([np.arctan2(-matrix[1, 2], matrix[1, 1]), y, 0.0]) / np.pi
    x, z = np.arctan2(matrix[2, 1], matrix[2, 2]), np.arctan2(matrix[1, 0], matrix[0, 0])
    return np.array([x, y, z]) / np.pi


CORNER_SIGNS = np.array(list(product((-1.0, 1.0), repeat=3)))
"""Signs of the corners of a box along its own axes x, y and z, [8, 3]."""


def corners_of(numbers: Floats) -> Floats:
    """Convert the nine numbers of a box to its corners, [8, 3], in the order of CORNER_SIGNS."""
    rotation = rotation_matrices(numbers[6:])
    return np.asarray(numbers[:3] + CORNER_SIGNS * numbers[3:6] / 2 @ rotation.T)


def project(points: Floats, camera: Mapping[str, float]) -> Floats:
    """Convert points in front of a camera, [..., 3], to pixels of its image, [..., 2]."""
    focal, centre = ([camera[name] for name in pair] for pair in (("fx", "fy"), ("cx", "cy")))
    return np.asarray(points[..., :2] / points[..., 2:] * focal + centre)
