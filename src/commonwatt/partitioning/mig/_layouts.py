"""Layouts of one GPU: validation, placement, and enumeration of all maximal ones.

A layout is a set of placed instances. It is legal if every instance starts at an allowed memory slice, no two overlap,
at most 7 compute slices are used, and no profile exceeds its maximum count. It is maximal if no instance can be added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from commonwatt.model.errors import InputError
from commonwatt.partitioning.mig._profiles import COMPUTE_SLICES, MEMORY_SLICES, PLAIN, GpuType, Profile, gpu_type

__all__ = ["Layout", "Placed", "check_layout", "count_vectors", "find_layout", "layouts", "parse_layout"]


@dataclass(frozen=True, order=True)
class Placed:
    """An instance and the memory slice at which it starts."""

    start: int
    profile: str  # key of the profile

    def __str__(self) -> str:
        return f"{self.profile}@{self.start}"


Layout = tuple[Placed, ...]
"""Instances in the order of their memory slices."""


def check_layout(gpu: GpuType, layout: Sequence[Placed], field: str | None = None) -> Layout:
    """Return *layout* in order if it is legal on *gpu*.

    Raises ``InputError`` naming *field*, the instance and the conflict.
    """
    owner: dict[int, Placed] = {}
    for placed in layout:
        profile = gpu.profile(placed.profile, field)
        if placed.start not in profile.starts:
            at = ", ".join(map(str, profile.starts))
            raise InputError(
                f"{profile.name} to begin at memory slice {at} of a {gpu.name}", field=field, value=str(placed)
            )
        for place in range(placed.start, placed.start + profile.memory):
            if place in owner:
                raise InputError(
                    f"free memory slices for {placed}; slice {place} is taken by {owner[place]}",
                    field=field, value=_shown(layout),
                )  # fmt: skip
            owner[place] = placed
    _check_totals(gpu, layout, field)
    return tuple(sorted(layout))


def _check_totals(gpu: GpuType, layout: Sequence[Placed], field: str | None) -> None:
    used = sum(gpu.profile(placed.profile).compute for placed in layout)
    if used > COMPUTE_SLICES:
        raise InputError(
            f"at most {COMPUTE_SLICES} compute slices on a {gpu.name}, not {used}", field=field, value=_shown(layout)
        )
    for key, count in Counter(placed.profile for placed in layout).items():
        profile = gpu.profile(key)
        if count > profile.most:
            raise InputError(
                f"at most {profile.most} instances {profile.name} on a {gpu.name}, not {count}",
                field=field, value=_shown(layout),
            )  # fmt: skip


def parse_layout(gpu: GpuType, words: Sequence[str], field: str) -> Layout:
    """Parse and check a layout given as one word for each instance, such as ``3g.40gb@0`` or ``3g@0``.

    If no word states a start slice, a legal placement of all instances is found. Raises ``InputError``.
    """
    if not any("@" in word for word in words):
        counts = Counter(gpu.profile(word, field).key for word in words)
        found = find_layout(gpu, counts)
        if found is None:
            raise InputError(f"profiles that fit on one {gpu.name} together", field=field, value=", ".join(words))
        return found
    placed = []
    for word in words:
        name, _, place = word.partition("@")
        key = gpu.profile(name, field).key
        if not place.isdecimal():
            raise InputError(
                "PROFILE@SLICE, the memory slice it begins at, for all instances or for none", field=field, value=word
            )
        placed.append(Placed(int(place), key))
    return check_layout(gpu, placed, field)


@cache
def layouts(name: str, keys: tuple[str, ...] = PLAIN) -> tuple[Layout, ...]:
    """Return every maximal layout of GPU type *name* made of profiles *keys*, largest instances first."""
    gpu = gpu_type(name)
    profiles = sorted((gpu.profile(key) for key in keys), key=lambda p: -p.compute)
    return tuple(found for found in _fill(profiles, 0, ()) if _is_maximal(profiles, found))


def _fill(profiles: Sequence[Profile], start: int, done: Layout) -> Iterator[Layout]:
    """Yield the legal layouts that extend *done* by instances at memory slice *start* or later."""
    if start == MEMORY_SLICES:
        yield done
        return
    for profile in profiles:
        if _fits(profiles, profile, start, done):
            yield from _fill(profiles, start + profile.memory, (*done, Placed(start, profile.key)))
    yield from _fill(profiles, start + 1, done)


def _fits(profiles: Sequence[Profile], profile: Profile, start: int, others: Layout) -> bool:
    """Whether *profile* fits at *start* beside *others*."""
    by_key = {p.key: p for p in profiles}
    if start not in profile.starts or start + profile.memory > MEMORY_SLICES:
        return False
    if sum(by_key[o.profile].compute for o in others) + profile.compute > COMPUTE_SLICES:
        return False
    if sum(o.profile == profile.key for o in others) >= profile.most:
        return False
    taken = {place for o in others for place in range(o.start, o.start + by_key[o.profile].memory)}
    return taken.isdisjoint(range(start, start + profile.memory))


def _is_maximal(profiles: Sequence[Profile], layout: Layout) -> bool:
    return not any(_fits(profiles, p, start, layout) for p in profiles for start in p.starts)


def count_vectors(name: str, keys: tuple[str, ...] = PLAIN) -> dict[tuple[int, ...], tuple[Layout, ...]]:
    """Return the maximal layouts of GPU type *name*, grouped by their number of instances of each of *keys*."""
    found: dict[tuple[int, ...], list[Layout]] = {}
    for layout in layouts(name, keys):
        counts = Counter(placed.profile for placed in layout)
        found.setdefault(tuple(counts[key] for key in keys), []).append(layout)
    return {counts: tuple(same) for counts, same in found.items()}


def find_layout(gpu: GpuType, counts: Mapping[str, int]) -> Layout | None:
    """Return a legal layout with the given *counts* by profile key, or ``None`` if there is none.

    Large instances are placed first, each at the lowest free start slice; the driver may place them differently.
    """
    used = sum(gpu.profile(key).compute * count for key, count in counts.items())
    if used > COMPUTE_SLICES or any(count > gpu.profile(key).most for key, count in counts.items()):
        return None
    wanted = [gpu.profile(key) for key in counts for _ in range(counts[key])]
    wanted.sort(key=lambda p: (-p.memory, -p.compute, p.key))
    return _place(gpu.profiles, tuple(wanted), ())


def _place(profiles: Sequence[Profile], wanted: tuple[Profile, ...], done: Layout) -> Layout | None:
    if not wanted:
        return tuple(sorted(done))
    first, rest = wanted[0], wanted[1:]
    begun = max((placed.start for placed in done if placed.profile == first.key), default=-1)
    for start in first.starts:
        if start > begun and _fits(profiles, first, start, done):
            found = _place(profiles, rest, (*done, Placed(start, first.key)))
            if found is not None:
                return found
    return None


def _shown(layout: Sequence[Placed]) -> str:
    return ", ".join(map(str, layout))
