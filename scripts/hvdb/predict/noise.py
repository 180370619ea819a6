"""How the compute times of hosts vary, from the recorded steps of a few: the host's own level, and the tail of a step.

The slowest of many ranks lies beyond what a few recorded steps show, and drawing from them again would promise that
nothing slower than the slowest recorded step ever comes. So a pool of hosts is made for each group of draws:

- host: its level is drawn from a normal distribution with the spread of the recorded hosts;
- step: blocks of successive steps of a recorded host, whose times above a high quantile come from a generalised Pareto
  distribution with the mean of the recorded ones and a shape that is not known. They keep their order in time.

Source of the form of the tail: Pickands, Ann. Statist. 3 (1975) 119.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

BLOCK = 10  # successive steps that are resampled together
FACTORS = (1e-3, 1e3)  # the smallest and the largest that hvd_bench simulate takes
POOL_NODES, POOL_STEPS = 32, 100
TAIL = 0.9  # quantile above which the tail begins
MIN_TAIL = 4  # recorded steps above it, at least
SHAPE = 0.15  # standard deviation of the shape around 0, an exponential tail
# Before hosts are compared: as if so many had this standard deviation of the logarithm of their levels. Assumed.
PRIOR_HOSTS, PRIOR_LEVEL = 2, 0.005

Node = Sequence[np.ndarray]  # [rank of the node]: compute times of successive steps over the typical one


def level_spread(nodes: Sequence[Node]) -> float:
    """Returns the standard deviation of the logarithm of the levels of hosts."""
    levels = [math.log(_level(node)) for node in nodes]
    free = len(levels) - 1
    found = float(np.var(levels, ddof=1)) if free else 0.0
    return math.sqrt((PRIOR_HOSTS * PRIOR_LEVEL**2 + free * found) / (PRIOR_HOSTS + free))


def pool(nodes: Sequence[Node], random: np.random.Generator) -> list[list[np.ndarray]]:
    """Returns hosts like `nodes`, with as many ranks each. Blocks of equal place are drawn together, so that what
    slowed all hosts at once still does."""
    levels = [_level(node) for node in nodes]
    middle, apart = float(np.mean(np.log(levels))), level_spread(nodes)
    relative = [[np.log(series / level) for series in node] for node, level in zip(nodes, levels, strict=True)]
    every = np.concatenate([series for node in relative for series in node])
    start = float(np.quantile(every, TAIL))
    above = every[every > start] - start
    scale = float(np.mean(random.choice(above, len(above)))) if len(above) >= MIN_TAIL else 0.0
    shape = float(np.clip(random.normal(0, SHAPE), -0.5, 0.5))
    starts = random.random(-(-POOL_STEPS // BLOCK))
    made = []
    for _ in range(POOL_NODES):
        node = relative[random.integers(len(relative))]
        level = math.exp(random.normal(middle, apart))
        chosen = _blocks(starts, len(node[0]))
        made.append([level * np.exp(_with_tail(series[chosen], start, scale, shape, random)) for series in node])
    return made


def _level(node: Node) -> float:
    return float(np.median(np.mean(node, axis=0)))


def _blocks(starts: np.ndarray, length: int) -> np.ndarray:
    """Returns POOL_STEPS indices into a series of `length`, in blocks. starts: of the blocks, in [0, 1)."""
    places = (starts * length).astype(int)
    return ((places[:, None] + np.arange(BLOCK)).ravel() % length)[:POOL_STEPS]


def _with_tail(series: np.ndarray, start: float, scale: float, shape: float, random: np.random.Generator) -> np.ndarray:
    """Returns `series`, whose values above `start` are drawn anew, and keep their order by size."""
    where = np.flatnonzero(series > start)
    if not scale or not len(where):
        return series
    uniform = random.random(len(where))
    # The mean of the distribution is scale / (1 - shape) for the scale parameter `scale`.
    beyond = -np.log(uniform) if abs(shape) < 1e-6 else (uniform**-shape - 1) / shape * (1 - shape)
    made = series.copy()
    made[where[np.argsort(series[where])]] = start + scale * np.sort(beyond)
    return made
