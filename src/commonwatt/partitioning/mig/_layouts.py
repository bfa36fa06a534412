"""MIG profiles by GPU type, and layouts of one GPU: validation, placement, and enumeration of all maximal ones.

A layout is a set of placed instances. It is legal if every instance starts at an allowed memory slice, no two overlap,
at most 7 compute slices are used, and no profile exceeds its maximum count. It is maximal if no instance can be added.

A GPU has 7 compute slices and 8 memory slices. A profile takes some of each and may start only at certain memory
slices. Sources and their certainty:

- Profile names, fractions and counts: NVIDIA MIG User Guide, "Supported MIG Profiles". Certain.
- Start positions: published output of ``nvidia-smi mig -lgipp`` on an A100-40GB, an H100-80GB and an H100 NVL, equal
  on all three. Assumed equal on the H200 and the A100-80GB.
- SMs and usable memory of the A100-40GB and the H100-80GB (SXM): published output of ``nvidia-smi mig -lgip``. The
  A100-80GB is assumed to have the SMs of the A100-40GB (same die). The H100 PCIe, with fewer SMs, is not included.
- GH200 with 96 GB: SMs and usable memory from a published output of ``nvidia-smi mig -lgip``; start positions are
  assumed equal to the H100's.
- B200: names and counts as in the user guide, 18 SMs for 1g as published by a user. The others are assumed in
  proportion to compute slices, start positions equal to the H100's. Nobody has checked these on a GPU for us.
- A30 is not included: it has 4 compute and 4 memory slices.
- H200: SMs of 2g, 3g and 4g (32, 60, 64) as published with measurements; the others are assumed equal to the H100's
  (same die). Usable memory is unknown.

The memory in a profile's name is nominal; what a program can allocate depends on the driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from commonwatt.model.errors import InputError
from commonwatt.model.names import one_of

__all__ = [
    "COMPUTE_SLICES",
    "GPUS",
    "MEMORY_SLICES",
    "PLAIN",
    "GpuType",
    "Layout",
    "Placed",
    "Profile",
    "check_layout",
    "count_vectors",
    "find_layout",
    "gpu_type",
    "layouts",
    "mig_memory_gb",
    "mig_types",
    "parse_layout",
]

# -- profiles


COMPUTE_SLICES = 7
MEMORY_SLICES = 8


@dataclass(frozen=True)
class Profile:
    """An instance profile of one GPU type.

    Attributes
    ----------
    key
        Name without memory: ``1g``, ``2g``, ``3g``, ``4g``, ``7g``; ``1g+me`` includes the media engines, ``1g.x2``
        has two memory slices with one compute slice.
    name
        NVIDIA's name on this GPU type, such as ``1g.10gb``.
    compute, memory
        Slices used.
    starts
        Memory slices at which it may start.
    most
        Maximum number of instances on one GPU.
    memory_gb
        Nominal memory, GB.
    usable_gib
        Memory the driver lists, GiB; ``None`` if unknown.
    sms
        Streaming multiprocessors.
    """

    key: str
    name: str
    compute: int
    memory: int
    starts: tuple[int, ...]
    most: int
    memory_gb: float
    usable_gib: float | None
    sms: int


@dataclass(frozen=True)
class GpuType:
    """A GPU type that supports MIG, and the certainty of its figures."""

    name: str
    memory_gb: float
    profiles: tuple[Profile, ...]
    certainty: str

    def find(self, name: str) -> Profile | None:
        """Return the profile called *name* (``3g`` or ``3g.40gb``), ``None`` if there is none."""
        return next((p for p in self.profiles if name in (p.key, p.name)), None)

    def profile(self, name: str, field: str | None = None) -> Profile:
        """Return the profile called *name*; raises ``InputError`` naming *field* and the known profiles."""
        profile = self.find(name)
        if profile is None:
            raise InputError(
                f"one of the profiles of {_a(self.name)}: {', '.join(self.names())}", field=field, value=name
            )
        return profile

    def names(self) -> Iterator[str]:
        """Yield NVIDIA's names of its profiles."""
        return (p.name for p in self.profiles)

    @property
    def whole(self) -> Profile:
        """The profile that is the whole GPU."""
        return self.profile("7g")


_SHAPES: dict[str, tuple[int, int, tuple[int, ...], int]] = {  # compute, memory, starts, most
    "1g": (1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
    "1g+me": (1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
    "1g.x2": (1, 2, (0, 2, 4, 6), 4),
    "2g": (2, 2, (0, 2, 4), 3),
    "3g": (3, 4, (0, 4), 2),
    "4g": (4, 4, (0,), 1),
    "7g": (7, 8, (0,), 1),
}
PLAIN = ("1g", "2g", "3g", "4g", "7g")
"""Profiles used in layouts unless a problem asks for all."""


def _type(
    name: str, certainty: str, memory: dict[int, float], sms: dict[str, int], usable: dict[int, float] | None = None
) -> GpuType:
    """Build a GPU type; *memory* and *usable* are keyed by the number of memory slices."""
    profiles = []
    for key, (compute, slices, starts, most) in _SHAPES.items():
        shown = f"{compute}g.{memory[slices]:g}gb" + ("+me" if key == "1g+me" else "")
        listed = None if usable is None else usable[slices]
        profiles.append(Profile(key, shown, compute, slices, starts, most, memory[slices], listed, sms[key]))
    return GpuType(name, memory[8], tuple(profiles), certainty)


_A100 = {"1g": 14, "1g+me": 14, "1g.x2": 14, "2g": 28, "3g": 42, "4g": 56, "7g": 98}
_B200 = {"1g": 18, "1g+me": 18, "1g.x2": 18, "2g": 36, "3g": 54, "4g": 72, "7g": 126}
_H100 = {"1g": 16, "1g+me": 16, "1g.x2": 26, "2g": 32, "3g": 60, "4g": 64, "7g": 132}

GPUS: dict[str, GpuType] = {
    gpu.name: gpu
    for gpu in (
        _type(
            "A100-40GB", "all figures from published driver listings",
            {1: 5, 2: 10, 4: 20, 8: 40}, _A100, {1: 4.75, 2: 9.75, 4: 19.62, 8: 39.50},
        ),
        _type(
            "A100-80GB", "names from the user guide; positions and SMs as on the A100-40GB",
            {1: 10, 2: 20, 4: 40, 8: 80}, _A100,
        ),
        _type(
            "H100-80GB", "all figures from a published driver listing of an SXM module",
            {1: 10, 2: 20, 4: 40, 8: 80}, _H100, {1: 9.75, 2: 19.62, 4: 39.50, 8: 79.25},
        ),
        _type(
            "H200-141GB", "names from the user guide; SMs of 1g and 7g, and positions, assumed as on the H100",
            {1: 18, 2: 35, 4: 71, 8: 141}, _H100,
        ),
        _type(
            "GH200-96GB", "names from the user guide, rest from a published driver listing; positions as on the H100",
            {1: 12, 2: 24, 4: 48, 8: 96}, _H100, {1: 11.00, 2: 23.00, 4: 46.50, 8: 93.00},
        ),
        _type(
            "B200-180GB",
            "names from the user guide; not checked: SMs (18 a compute slice; 1g as published), positions",
            {1: 23, 2: 45, 4: 90, 8: 180}, _B200,
        ),
    )
}  # fmt: skip


def gpu_type(name: str, field: str | None = None) -> GpuType:
    """Return the GPU type called *name*; raises ``InputError`` naming *field* and the known types."""
    if name not in GPUS:
        raise InputError(one_of(GPUS, name), field=field, value=name)
    return GPUS[name]


def mig_memory_gb(gpu_type: str) -> float | None:
    """Return the memory of a GPU type that supports MIG; ``None`` for any other."""
    return GPUS[gpu_type].memory_gb if gpu_type in GPUS else None


def mig_types() -> tuple[str, ...]:
    """Return the names of the GPU types that support MIG."""
    return tuple(GPUS)


# -- layouts


@dataclass(frozen=True, order=True)
class Placed:
    """An instance and the memory slice at which it starts."""

    start: int
    profile: str  # key of the profile

    def __str__(self) -> str:
        return f"{self.profile}@{self.start}"


Layout = tuple[Placed, ...]
"""Instances in the order of their memory slices."""


def _a(name: str) -> str:
    """Return the name of a GPU type with its article: a B200, an A100, an H100."""
    return f"{'an' if name[:1].upper() in tuple('AEFHILMNORSX') else 'a'} {name}"


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
                f"{profile.name} to begin at memory slice {at} of {_a(gpu.name)}", field=field, value=str(placed)
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
            f"at most {COMPUTE_SLICES} compute slices on {_a(gpu.name)}, not {used}", field=field, value=_shown(layout)
        )
    for key, count in Counter(placed.profile for placed in layout).items():
        profile = gpu.profile(key)
        if count > profile.most:
            raise InputError(
                f"at most {profile.most} instances {profile.name} on {_a(gpu.name)}, not {count}",
                field=field, value=_shown(layout),
            )  # fmt: skip


def parse_layout(gpu: GpuType, words: Sequence[str], field: str) -> Layout:
    """Parse and check a layout given as one word for each instance, such as ``3g.40gb@0`` or ``3g@0``.

    If no word states a start slice, a legal placement of all instances is found. Raises ``InputError``.
    """
    if not any("@" in word for word in words):
        counts = Counter(gpu.profile(word, field).key for word in words)
        layout = find_layout(gpu, counts)
        if layout is None:
            raise InputError(f"profiles that fit on one {gpu.name} together", field=field, value=", ".join(words))
        return layout
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
    return tuple(layout for layout in _fill(profiles, 0, ()) if _is_maximal(profiles, layout))


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
    by_counts: dict[tuple[int, ...], list[Layout]] = {}
    for layout in layouts(name, keys):
        counts = Counter(placed.profile for placed in layout)
        by_counts.setdefault(tuple(counts[key] for key in keys), []).append(layout)
    return {counts: tuple(same) for counts, same in by_counts.items()}


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
            layout = _place(profiles, rest, (*done, Placed(start, first.key)))
            if layout is not None:
                return layout
    return None


def _shown(layout: Sequence[Placed]) -> str:
    return ", ".join(map(str, layout))
