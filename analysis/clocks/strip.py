"""The difference of two clocks inside one window: every line (offset, drift) that makes all orders possible.

With t the stamp of clock A, the difference d(t) = B - A is a line, `offset + drift * t`. A message from A to B lies on
or above it (received on B less sent on A, at the sender's t), one from B to A on or below it (sent on B less received
on A, at the receiver's t): both are exact on A's axis. The feasible lines are a convex polygon in (offset, drift).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

MAX_DRIFT = 200e-6
"""Two clocks part by at most this: crystals are within 50 ppm each, a time daemon slews no faster in steady state."""
TOLERANCE_NS = 1_000.0
"""Stamps are taken before or after the event itself; no order is called impossible for less than a microsecond."""
FEW_SHARE = 0.005
FEW = 2
"""Up to this many (or this share of) messages may contradict all others before the clock itself is doubted."""
FAR = 1e14
"""Differences beyond this (a day from where the pair roughly is) are unbounded: no message on that side."""


@dataclass(frozen=True)
class Points:
    """Messages of one pair: t on A's axis, value (received less sent, as B less A), is_upper for those from A to B.

    All in ns, and near zero: floats hold no Unix time to the ns, so the caller takes a rough difference off first.
    """

    t: Floats
    value: Floats
    is_upper: Flags

    def pick(self, which: Flags) -> Points:
        """Keep some of them."""
        return Points(self.t[which], self.value[which], self.is_upper[which])

    def slice(self, first: int, behind: int) -> Points:
        """Keep those from first up to behind."""
        return Points(self.t[first:behind], self.value[first:behind], self.is_upper[first:behind])

    def __len__(self) -> int:
        return len(self.t)


def find_polygon(points: Points, origin: float, max_drift: float = MAX_DRIFT) -> Floats | None:
    """Find the vertices (offset at origin, drift) of all lines that respect every message; None if there is none.

    The worst violated message cuts the polygon, until none is violated: only messages on the hulls are ever used.
    """
    vertices = np.array([[-FAR, -max_drift], [FAR, -max_drift], [FAR, max_drift], [-FAR, max_drift]])
    sign = np.where(points.is_upper, 1.0, -1.0)
    at, bound = points.t - origin, sign * points.value + TOLERANCE_NS
    for _ in range(4 * len(points)):
        # sign * (offset + drift * t) <= bound, for every vertex of the polygon and every message
        over = (sign * (vertices[:, :1] + vertices[:, 1:] * at) - bound).max(axis=0)
        worst = int(over.argmax()) if len(over) else 0
        if not len(over) or over[worst] <= 1e-3:
            return vertices
        cut = _cut(vertices, sign[worst], at[worst], bound[worst])
        if cut is None:
            return None
        vertices = cut
    return vertices


def _cut(vertices: Floats, sign: float, at: float, bound: float) -> Floats | None:
    """Cut a convex polygon by one half-plane (Sutherland and Hodgman 1974)."""
    over = sign * (vertices[:, 0] + vertices[:, 1] * at) - bound
    if (over > 0).all():
        return None
    kept = []
    for place in range(len(vertices)):
        here, ahead = over[place], over[(place + 1) % len(vertices)]
        if here <= 0:
            kept.append(vertices[place])
        if (here < 0 < ahead) or (ahead < 0 < here):
            share = here / (here - ahead)
            kept.append(vertices[place] + share * (vertices[(place + 1) % len(vertices)] - vertices[place]))
    return np.array(kept) if kept else None


def bound_at(vertices: Floats, origin: float, t: float) -> tuple[float, float]:
    """Bound the difference at t: (low, high), infinite on a side without messages."""
    at = vertices[:, 0] + vertices[:, 1] * (t - origin)
    low, high = float(at.min()), float(at.max())
    return (low if low > -FAR / 2 else -np.inf), (high if high < FAR / 2 else np.inf)


def find_robust(points: Points, origin: float) -> tuple[Floats, Flags] | None:
    """Find the polygon without the few messages that contradict the many: (vertices, which were left out).

    The line of least summed violation (linear programme, HiGHS) says who contradicts. None if they are not few.
    """
    whole = find_polygon(points, origin)
    if whole is not None:
        return whole, np.zeros(len(points), dtype=bool)
    few = int(max(FEW, FEW_SHARE * len(points)))
    over = _measure_violation(points, origin)
    worst = np.argsort(-over)[:few]
    for count in range(1, few + 1):
        out = np.zeros(len(points), dtype=bool)
        out[worst[:count]] = True
        rest = find_polygon(points.pick(~out), origin)
        if rest is not None:
            return rest, out
    return None


def _measure_violation(points: Points, origin: float) -> Floats:
    """Measure by how much each message contradicts the line that all of them contradict least in sum, ns."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix, eye, hstack

    count = len(points)
    sign = np.where(points.is_upper, 1.0, -1.0)
    # In ms and s: HiGHS wants figures near one. Violations beyond a second all weigh the same, whatever the stamp says.
    middle = float(np.median(points.value))
    at, value = (points.t - origin) / 1e9, (points.value - middle) / 1e6
    terms = csr_matrix(np.column_stack([sign, sign * at]))
    found = linprog(
        np.concatenate([[0.0, 0.0], np.ones(count)]),
        A_ub=hstack([terms, -eye(count)], format="csr"),
        b_ub=sign * value + TOLERANCE_NS / 1e6,
        bounds=[(None, None), (-MAX_DRIFT * 1e3, MAX_DRIFT * 1e3), *[(0, None)] * count],
        method="highs",
    )
    if not found.success:
        return np.zeros(count)
    return np.asarray(sign * (found.x[0] + found.x[1] * at - value) * 1e6)
