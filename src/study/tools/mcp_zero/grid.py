"""The grid of the needle test (MCP-Zero, section 5.2): how many tools are on offer, and where the target stands."""

from __future__ import annotations

import numpy as np

POSITIONS, SIZES = 21, 50


def grid(n_tools: int) -> list[tuple[int, int]]:
    """The distinct (size, index of the target) pairs of 21 positions by 50 sizes; 755 for 2,797 tools."""
    sizes = np.unique(np.round(np.logspace(0, np.log10(n_tools), SIZES)).astype(int))
    ratios = np.linspace(0, 1, POSITIONS)
    return sorted({(int(size), int((size - 1) * ratio)) for size in sizes for ratio in ratios})
