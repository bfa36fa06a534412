"""Jobs that wait for others, as ``sbatch --dependency`` has it: when they may start, and what is known of it before.

One set of rules for live jobs, scenarios and job logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints

__all__ = [
    "Dependency",
    "Notice",
    "WaitedFor",
    "among",
    "handovers",
    "in_order",
    "met",
    "never_met",
    "notices",
    "parse_after",
    "shown_circle",
    "together",
]

Dependency = Literal["after", "afterany", "afterok", "afternotok"]
"""Until a job has started (after), ended (afterany), completed (afterok) or failed (afternotok)."""
K = TypeVar("K", int, str)

_PART = re.compile(r"(after|afterany|afterok|afternotok)((?::[^\s:,?+]+)+)")


def parse_after(text: str) -> dict[str, Dependency]:
    """Read ``afterok:12:13,afterany:7``: jobs with what is waited for.

    Raises ``ValueError`` on anything else; ``?`` (any of them) and ``+`` (minutes later) are not supported.
    """
    dependencies: dict[str, Dependency] = {}
    for part in text.split(",") if text else ():
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(text)
        kind: Dependency = match[1]  # type: ignore[assignment]
        dependencies |= dict.fromkeys(match[2][1:].split(":"), kind)
    return dependencies


def in_order(after: Mapping[K, Iterable[K]]) -> list[K]:
    """Return all jobs, each behind those it waits for; raises ``graphlib.CycleError`` where they wait in a circle."""
    return list(TopologicalSorter(after).static_order())


def shown_circle(names: Sequence[str]) -> str:
    """Return in a few words jobs that wait in a circle, as ``CycleError`` has them: the last is the first again."""
    if len(names) <= 7:
        return " -> ".join(names)
    return f"{' -> '.join(names[:4])} -> … -> {names[-1]}, {len(names) - 1:,} jobs"


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """What is known of a job that others wait for.

    Attributes
    ----------
    began, ended, completed
        Whether it has ever started, has ended in any way, and has done all its work.
    expected_end_s
        When it is expected to end; ``None``: it does not run, or that is not known.
    gpus
        GPUs it has.
    """

    began: bool = False
    ended: bool = False
    completed: bool = False
    expected_end_s: float | None = None
    gpus: int = 0


def together(tasks: Sequence[WaitedFor]) -> WaitedFor:
    """Return what is known of an array, for jobs that wait for all its *tasks*, of which there is at least one."""
    left = [task for task in tasks if not task.ended]
    ends = [task.expected_end_s for task in left]
    return WaitedFor(
        began=all(task.began or task.ended for task in tasks),
        ended=not left,
        completed=all(task.completed for task in tasks),
        expected_end_s=None if not left or None in ends else max(end_s for end_s in ends if end_s is not None),
        gpus=sum(task.gpus for task in left),
    )


def met(kind: Dependency, other: WaitedFor | None) -> bool | None:
    """Return whether a dependency of *kind* on a job is met; ``None``: it never will be.

    *other* is the job; ``None``: one that there is not any more, or never was, and so has ended.
    """
    if other is None:
        return None if kind in ("afterok", "afternotok") else True
    if not other.ended:
        return kind == "after" and other.began
    if kind in ("after", "afterany"):
        return True
    return other.completed == (kind == "afterok") or None


def among(
    after: Sequence[Mapping[str, Dependency]], names: Set[str]
) -> tuple[tuple[Mapping[str, Dependency], ...], Bools]:
    """Return *after* without jobs that are not among *names*, and which rows that changes. Shapes [J]."""
    kept = tuple({name: kind for name, kind in own.items() if name in names} for own in after)
    changed = np.array([len(own) < len(before) for own, before in zip(kept, after, strict=True)], dtype=bool)
    return kept if any(kept) else (), changed


def never_met(after: Mapping[int, Mapping[int, Dependency]]) -> set[int]:
    """Return the jobs that never start if all others complete, and those that wait in vain for these to complete."""
    never: set[int] = set()
    for job in in_order(after):
        ended = {other: WaitedFor(ended=True, completed=other not in never) for other in after.get(job, ())}
        if any(met(kind, ended[other]) is None for other, kind in after.get(job, {}).items()):
            never.add(job)
    return never


def handovers(
    after: Mapping[int, Mapping[int, Dependency]], others: Mapping[int, WaitedFor]
) -> dict[int, tuple[float, int]]:
    """Return when each job is expected to be let go, and the GPUs it takes over from those it waits for.

    Only jobs that wait for nothing but running jobs to end, all with an expected end. The GPUs of a job are taken over
    once, by the first that waits for it.

    Parameters
    ----------
    after
        Waiting jobs: what they wait for, by job.
    others
        The jobs that are waited for; one that is missing is not there any more.
    """
    by_job: dict[int, tuple[float, int]] = {}
    taken: set[int] = set()
    for job, own in after.items():
        left = [other for other, kind in own.items() if not met(kind, others.get(other))]
        ends = [others[o].expected_end_s if o in others and own[o] in ("afterok", "afterany") else None for o in left]
        if left and None not in ends:
            freed = sum(others[other].gpus for other in left if other not in taken)
            taken.update(left)
            by_job[job] = max(end_s for end_s in ends if end_s is not None), freed
    return by_job


class Notice(NamedTuple):
    """From one time up to another, so many GPUs more are expected at a time."""

    from_s: float
    until_s: float
    at_s: float
    gpus: int


def notices(
    after: Sequence[Mapping[int, Dependency]], submit_s: Floats, begins_s: Floats, ends_s: Floats, limit_s: Floats,
    gpus: Ints,
) -> list[Notice]:  # fmt: skip
    """Return what was known ahead of the jobs of a log that wait for others.

    A running job is expected to end at its limit, whatever it really took: that is what was known. Shapes [J].

    Parameters
    ----------
    after
        What each job waits for, by row.
    limit_s
        Declared run time; infinity or NaN: not known, so nothing is expected.
    """
    spans: list[Notice] = []
    expected_s = begins_s + limit_s
    taken: dict[int, list[tuple[float, float]]] = {}  # by job: when one in an earlier row takes over its GPUs
    for job, own in enumerate(after):
        others = list(own)
        if not others or (from_s := max(submit_s[job], *begins_s[others])) >= (until_s := ends_s[others].max()):
            continue
        edges = {edge for o in others for span in (*taken.get(o, ()), (ends_s[o],)) for edge in span}
        moments = sorted({float(t) for t in (from_s, until_s, *edges) if from_s <= t <= until_s})
        takes: list[tuple[int, float, float]] = []
        for now_s, next_s in pairwise(moments):
            states = {
                o: WaitedFor(
                    began=True, ended=bool(ends_s[o] <= now_s), completed=bool(ends_s[o] <= now_s),
                    expected_end_s=float(expected_s[o]) if np.isfinite(expected_s[o]) else None,
                    gpus=0 if any(a <= now_s < b for a, b in taken.get(o, ())) else int(gpus[o]),
                )
                for o in others
            }  # fmt: skip
            for at_s, freed in handovers({job: own}, states).values():
                takes += [(o, now_s, next_s) for o in others if not met(own[o], states[o])]
                if at_s > now_s and gpus[job] > freed:
                    spans.append(Notice(now_s, min(next_s, at_s), at_s, int(gpus[job]) - freed))
        for o, first_s, last_s in takes:
            taken[o] = _joined([*taken.get(o, ()), (first_s, last_s)])
    return spans


def _joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return *spans* in order, those that touch or overlap as one."""
    joined: list[tuple[float, float]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1]:
            first, last = joined[-1][0], max(last, joined.pop()[1])
        joined.append((first, last))
    return joined
