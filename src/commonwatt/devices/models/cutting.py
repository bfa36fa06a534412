"""Where to cut a program of nodes, and what each part reads, writes and frees.

Pure: nodes are numbers in their order of execution, values are names. Boundary ``b`` lies before node ``b``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

__all__ = ["Flow", "Part", "choose_cuts", "live_values", "parts_of"]

_SHORTEST, _LONGEST = 0.7, 1.15  # preferred length of a part, relative to the requested one


@dataclass(frozen=True)
class Flow:
    """Values that each node reads and writes (without weights), and inputs and outputs of the program."""

    reads: tuple[tuple[str, ...], ...]
    writes: tuple[tuple[str, ...], ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """Consecutive nodes that run as one step."""

    nodes: range
    reads: tuple[str, ...]
    writes: tuple[str, ...]  # values that later parts read, and outputs
    frees: tuple[str, ...]  # values that no later part needs


def live_values(flow: Flow) -> list[frozenset[str]]:
    """Return the values computed before and needed after each boundary, from 0 to the number of nodes."""
    needed = set(flow.outputs)
    live = [frozenset(needed)]
    for reads, writes in zip(reversed(flow.reads), reversed(flow.writes), strict=True):
        needed = (needed - set(writes)) | set(reads)
        live.append(frozenset(needed))
    return live[::-1]


def choose_cuts(
    times_s: Sequence[float], live_bytes: Sequence[float], allowed: Collection[int], segment_s: float
) -> tuple[int, ...]:
    """Return boundaries that cut nodes with *times_s* into parts of about *segment_s*.

    Parameters
    ----------
    live_bytes
        Live bytes at every boundary; among similar boundaries, the one with the fewest is chosen.
    allowed
        Boundaries at which a cut is possible.
    """
    ends = [0.0]
    for time_s in times_s:
        ends.append(ends[-1] + time_s)
    cuts: list[int] = []
    start = 0.0
    while ends[-1] - start > (1 + _SHORTEST / 2) * segment_s:
        after = [b for b in sorted(allowed) if 0 < b < len(times_s) and b > (cuts[-1] if cuts else 0)]
        near = [b for b in after if _SHORTEST <= (ends[b] - start) / segment_s <= _LONGEST]
        if near:
            best = min(near, key=lambda b: (live_bytes[b], abs(ends[b] - start - segment_s)))
        elif after:
            best = min(after, key=lambda b: abs(ends[b] - start - segment_s))
        else:
            break
        cuts.append(best)
        start = ends[best]
    return tuple(cuts)


def parts_of(flow: Flow, cuts: Sequence[int]) -> tuple[Part, ...]:
    """Return the parts between *cuts*; a part without outputs is merged with its neighbour."""
    live = live_values(flow)
    last = len(flow.reads)
    parts: list[Part] = []
    first, kept = 0, set(flow.inputs)
    for end in sorted({*cuts, last} - {0}):
        nodes = range(first, end)
        made = {name for node in nodes for name in flow.writes[node]}
        writes = made & live[end]
        if not writes and end != last:
            continue
        if not writes and parts:
            return parts_of(flow, [part.nodes.stop for part in parts[:-1]])
        reads = {name for node in nodes for name in flow.reads[node]} - made
        kept |= writes
        frees = kept - live[end]
        kept -= frees
        parts.append(Part(nodes, tuple(sorted(reads)), tuple(sorted(writes)), tuple(sorted(frees))))
        first = end
    return tuple(parts)
