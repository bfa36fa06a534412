"""Profiles of a cluster whose GPU types are declared, estimated, or cut into slices.

Where the speed of a GPU type comes from, the first that says it:

1. ``gpu_types`` of the scenario: ``speed`` times that of the type ``relative_to``, which may be declared in turn.
2. The measured tables, or the laws fitted to them.
3. A MIG slice, ``A100-1g.5gb``: its share of the GPU's 7 compute slices. A job uses one slice at most, as a process
   sees one.
4. Data sheets (``data_sheets``): an estimate relative to the measured A100.

A kind of model that was profiled on a type (``commonwatt profile``) has the measured speeds there.

A cluster of one type that none of these knows needs none of them (``OneType``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from commonwatt.data.profiles.base import (
    CLASSES,
    GPU_TYPES,
    MIG_SLICES,
    Profiles,
    canonical,
    class_of,
    mig_slice,
    type_in,
)
from commonwatt.data.profiles.law import LAW, data_sheet, data_sheets, relative_speed
from commonwatt.data.training_profiles import SpeedCurve
from commonwatt.model.errors import InputError
from commonwatt.model.names import did_you_mean, one_of
from commonwatt.model.nodes import REFERENCE_TYPE, GpuTypeSpec
from commonwatt.model.training_profile import TrainingProfile

__all__ = [
    "DEFAULT_LOGGED", "Declared", "OneType", "is_known", "preferred", "profiles_for", "standard_name", "type_name",
    "types_of_assumed_speed",
]  # fmt: skip

DEFAULT_LOGGED = "P100"  # GPU type of logged run times where neither the log nor the workload names one


def preferred(profiles: Profiles) -> tuple[str, ...]:
    """Return the kinds of model that jobs are of where they can be: those a user profiled on every type in use."""
    return profiles.preferred if isinstance(profiles, Declared) else ()


def types_of_assumed_speed(profiles: Profiles) -> tuple[str, ...]:
    """Return the GPU types that the log names, the cluster lacks and nobody knows: taken to be as fast as its own."""
    return profiles.others if isinstance(profiles, OneType) else ()


def is_known(name: str) -> bool:
    """Whether the speed of the GPU type spelt *name* is known without a declaration."""
    part = mig_slice(name)
    whole = name if part is None else part.whole
    return canonical(whole) is not None or data_sheet(whole) is not None


@dataclass(frozen=True)
class Declared:
    """Profiles *base* with the GPU types that a scenario declares, slices and estimates.

    Raises ``InputError`` on a ``relative_to`` that is unknown or leads back to itself, and on unknown kinds of model.
    """

    base: Profiles
    specs: Mapping[str, GpuTypeSpec]
    used: tuple[str, ...] = ()  # spellings of the types of the cluster and the log
    own: Mapping[str, Sequence[TrainingProfile]] = field(default_factory=dict)  # by declared type
    curves: Mapping[tuple[str, str], SpeedCurve] = field(init=False)  # by type and kind
    kinds: tuple[str, ...] = field(init=False)  # those profiled, then those of the base
    preferred: tuple[str, ...] = field(init=False)  # those profiled on every type in use

    def __post_init__(self) -> None:
        object.__setattr__(self, "curves", self._curves())
        profiled = tuple(dict.fromkeys(kind for _, kind in self.curves))
        types = [str(self.find(name)) for name in self.used]
        everywhere = tuple(kind for kind in profiled if all((name, kind) in self.curves for name in types))
        object.__setattr__(self, "kinds", (*profiled, *self.base.kinds))
        object.__setattr__(self, "preferred", everywhere)
        for name, spec in self.specs.items():
            for what, figures in (("speed", spec.speed), ("gpu_w", spec.gpu_w)):
                for kind in figures if isinstance(figures, dict) else ():
                    if kind not in CLASSES and kind not in self.kinds:
                        raise InputError(one_of(CLASSES, kind), field=f"gpu_types.{name}.{what}", value=kind)
            self._chain(name)

    def _curves(self) -> dict[tuple[str, str], SpeedCurve]:
        curves: dict[tuple[str, str], SpeedCurve] = {}
        for name, profiles in self.own.items():
            for profile in profiles:
                there, place = self.find(profile.gpu_type), f"gpu_types.{name}.profile"
                if there not in (None, name):
                    raise InputError(f"a profile of {name}", field=place, value=f"one of {profile.gpu_type}")
                if profile.kind in self.base.kinds or (name, profile.kind) in curves:
                    raise InputError("a kind of its own (commonwatt profile --kind)", field=place, value=profile.kind)
                curves[name, profile.kind] = SpeedCurve(profile)
        return curves

    @property
    def source(self) -> str:
        """Return the source of the figures, with what is declared or estimated of the types in use."""
        chains = [self._chain(self.type_named(name)) for name in self.used]
        notes = (self._note(name) for name in dict.fromkeys(name for chain in chains for name in chain))
        return "; ".join((self.base.source, *(note for note in notes if note)))

    def type_named(self, name: str, field: str | None = None, file: object = None) -> str:
        """Return the one name of the GPU type spelt *name*; raises ``InputError``, with what to declare, if unknown."""
        gpu_type = self.find(name)
        if gpu_type is None:
            estimated = ", ".join(dict.fromkeys(row.gpu_type for row in data_sheets() if not canonical(row.gpu_type)))
            near = did_you_mean(name, (*self.specs, *GPU_TYPES, *estimated.split(", ")))
            expected = (
                f"a GPU type whose speed is known ({', '.join(GPU_TYPES)}; by its data sheet {estimated}){near}, "
                f"or its speed in the scenario: gpu_types: {{{name}: {{speed: 1.0, relative_to: {REFERENCE_TYPE}}}}}"
            )
            raise InputError(expected, file=file, field=field, value=name)
        return gpu_type

    def speed(self, kind: str, gpu_type: str, gpus: int) -> float | None:
        """Samples per second relative to one P100; ``None`` if unknown, or if a job cannot use that many."""
        factor, name = 1.0, self.type_named(gpu_type)
        while True:
            spec, part = self._spec(name), mig_slice(name)
            most = spec.most_gpus or (1 if part else None)
            if most is not None and gpus > most:
                return None
            if (name, kind) in self.curves:
                speed = self.curves[name, kind].speed(gpus)
                return None if speed is None else factor * speed
            if spec.speed is not None:
                own = spec.speed
                multiple = own.get(kind, own.get(class_of(kind) or "")) if isinstance(own, dict) else own
                if multiple is None:
                    return None
                factor, name = factor * multiple, self.type_named(spec.relative_to)
            elif kind not in self.base.kinds:
                return None
            elif name in GPU_TYPES:
                speed = self.base.speed(kind, name, gpus)
                return None if speed is None else factor * speed
            elif part:
                factor, name = factor * part.slices / MIG_SLICES, self.type_named(part.whole)
            else:
                speed = self.base.speed(kind, REFERENCE_TYPE, gpus)
                return None if speed is None else factor * _estimate(name) * speed

    def gpu_w(self, kind: str, gpu_type: str) -> float | None:
        """Power of one GPU during training, W: declared, else measured; ``None`` if unknown."""
        name = self.type_named(gpu_type)
        spec = self._spec(name)
        if isinstance(spec.gpu_w, dict):
            return spec.gpu_w.get(kind, spec.gpu_w.get(class_of(kind) or ""))
        if spec.gpu_w is not None:
            return spec.gpu_w
        if (name, kind) in self.curves:
            return self.curves[name, kind].profile.mean_gpu_w()
        if kind not in self.base.kinds:
            return None
        return self.base.gpu_w(kind, name) if name in GPU_TYPES else None

    def limited(self, kind: str, gpu_type: str, limit: float) -> tuple[float, float] | None:
        """Time and power of training with a power limit, relative to those without; ``None`` if unknown."""
        name, of_class = self.type_named(gpu_type), class_of(kind)
        if mig_slice(name) is not None or of_class is None:
            return None
        measured = name in GPU_TYPES and kind in self.base.kinds
        return self.base.limited(kind, name, limit) if measured else LAW.limited(of_class, name, limit)

    def _spec(self, name: str) -> GpuTypeSpec:
        return self.specs.get(name) or GpuTypeSpec()

    def find(self, name: str) -> str | None:
        """Return the type's one name; ``None`` if its speed is unknown."""
        gpu_type = _spelt(name, self.specs)
        if gpu_type is None:
            return None
        part = mig_slice(gpu_type)
        if gpu_type not in self.specs and part is not None:
            return None if self.find(part.whole) is None else gpu_type
        own_speed = self._spec(gpu_type).speed is not None or bool(self._spec(gpu_type).profiles)
        return gpu_type if own_speed or standard_name(gpu_type) is not None else None

    def _chain(self, name: str) -> list[str]:
        """Return *name* and the types its speed is relative to, one after the other."""
        chain = [name]
        while True:
            spec, part = self._spec(chain[-1]), mig_slice(chain[-1])
            if spec.speed is not None:
                other = self.type_named(spec.relative_to, f"gpu_types.{chain[-1]}.relative_to")
            elif part is not None and not spec.profiles:
                other = self.type_named(part.whole or chain[-1], f"gpu_types.{chain[-1]}")
            else:
                return chain
            if other in chain:
                raise InputError(
                    "a chain of types that ends at a known one", field=f"gpu_types.{name}.relative_to",
                    value=" -> ".join((*chain, other)),
                )  # fmt: skip
            chain.append(other)

    def _note(self, name: str) -> str:
        spec, part = self._spec(name), mig_slice(name)
        if isinstance(spec.speed, dict):
            return f"speed of {name} declared by kind, as a multiple of {spec.relative_to}"
        if spec.speed is not None:
            return f"speed of {name} declared as {spec.speed:g} of {spec.relative_to}"
        if own := self.own.get(name, ()):
            models = "; ".join(sorted({p.power_model for p in own if p.power_model and p.mean_gpu_w()}))
            power = f", its power modelled ({models})" if models else ""
            return f"speed of {name} as measured by commonwatt profile of {', '.join(p.kind for p in own)}{power}"
        if name in GPU_TYPES:
            return ""
        if part is not None:
            return f"{name} taken as {part.slices}/{MIG_SLICES} of {part.whole}, one slice a job"
        return f"speed of {name} an estimate from data sheets, {_estimate(name):.2g} of {REFERENCE_TYPE}"


def _by_case(names: Iterable[str]) -> dict[str, str]:
    return {name.casefold(): name for name in names}


def _spelt(name: str, specs: Mapping[str, GpuTypeSpec]) -> str | None:
    own = _by_case(specs)
    own_tokens = {re.sub(r"[^A-Z0-9]+", "", key.upper()): key for key in specs}
    gpu_type = own.get(name.casefold()) or standard_name(name) or type_in(name, own_tokens)
    if gpu_type is None:
        return None
    gpu_type = own.get(gpu_type.casefold(), gpu_type)
    part = mig_slice(gpu_type)
    if gpu_type in specs or part is None:
        return gpu_type
    whole = _spelt(part.whole, specs)
    return None if whole is None else own.get(f"{whole}-{part.profile}".casefold(), f"{whole}-{part.profile}")


def type_name(name: str, specs: Mapping[str, GpuTypeSpec]) -> str:
    """Return the one name of the GPU type spelt *name*: as declared, else the usual one, else in small letters."""
    return _spelt(name, specs) or name.casefold()


def standard_name(name: str) -> str | None:
    """Return the usual name of a measured type, a slice or a type with a data sheet; ``None`` if it is none."""
    part = mig_slice(name)
    if part is not None:
        whole = standard_name(part.whole) or part.whole
        return f"{whole}-{part.profile}" if whole else None
    sheet = data_sheet(name)
    return canonical(name) or (sheet.name if sheet else None)


def _estimate(name: str) -> float:
    own, reference = data_sheet(name), data_sheet(REFERENCE_TYPE)
    assert own is not None
    assert reference is not None
    return relative_speed(own, reference)


@dataclass(frozen=True)
class OneType:
    """Profiles of a cluster with one GPU type of unknown speed, on which the log's jobs ran too.

    Every type is that one. A job of a class takes ``g ** -a`` of its time on one GPU when it has g of them, where a is
    the mean over GPU types of the fitted law's exponents.
    """

    gpu_type: str
    spec: GpuTypeSpec
    others: tuple[str, ...] = ()  # named by the log and taken to be as fast

    @property
    def kinds(self) -> tuple[str, ...]:
        """Classes of model."""
        return LAW.kinds

    @property
    def source(self) -> str:
        """Return the source of the figures."""
        taken = f"; {', '.join(self.others)} of the log taken to be as fast" if self.others else ""
        known = canonical(self.gpu_type) or data_sheet(self.gpu_type)
        unknown = "" if known else f" (whose speed is not known{did_you_mean(self.gpu_type, GPU_TYPES)})"
        return (
            f"run times taken to be of {self.gpu_type}, the cluster's one GPU type{unknown}; more GPUs scale by the "
            f"mean of the scaling laws fitted to Gavel's and Sia's measurements{taken}"
        )

    def type_named(self, name: str, field: str | None = None, file: object = None) -> str:  # noqa: ARG002
        """Return the one type."""
        return self.gpu_type

    def speed(self, kind: str, gpu_type: str, gpus: int) -> float | None:  # noqa: ARG002
        """Samples per second relative to one GPU; ``None`` if a job cannot use that many."""
        if self.spec.most_gpus is not None and gpus > self.spec.most_gpus:
            return None
        return float(gpus ** np.mean(list(LAW.exponent[kind].values())))

    def gpu_w(self, kind: str, gpu_type: str) -> float | None:  # noqa: ARG002
        """Power of one GPU during training, W, as declared; ``None`` if it is not."""
        return self.spec.gpu_w.get(kind) if isinstance(self.spec.gpu_w, dict) else self.spec.gpu_w

    def limited(self, kind: str, gpu_type: str, limit: float) -> tuple[float, float] | None:
        """Time and power of training with a power limit, relative to those without, as on measured types."""
        return LAW.limited(kind, gpu_type, limit)


def profiles_for(
    base: Profiles,
    specs: Mapping[str, GpuTypeSpec],
    cluster: Sequence[str],
    log: Iterable[str] = (),
    logged: str | None = None,
    own: Mapping[str, Sequence[TrainingProfile]] | None = None,
) -> tuple[Profiles, str | None]:
    """Return the profiles of a cluster with the GPU types *cluster*, and the type of run times without one.

    Parameters
    ----------
    base
        The measured tables, or the laws.
    specs
        GPU types the scenario declares.
    cluster
        GPU types of the cluster, each once.
    log
        GPU types the log names; empty names are left out.
    logged
        What the workload says of the GPU type of run times without one.
    own
        Profiles of trainings, by the declared type they were measured on.

    Raises
    ------
    InputError
        On a declaration that cannot be.
    """
    named = tuple(dict.fromkeys(name for name in log if name))
    used = tuple(dict.fromkeys((*cluster, *named, *([logged] if logged else []))))
    declared = Declared(base, specs, used, own or {})
    one = cluster[0] if len(cluster) == 1 else None
    if one is not None and canonical(one) is None and (logged is None or _same(declared, logged, one)):
        logged, spec = one, _spec_of(specs, one)
        foreign = tuple(name for name in named if not _same(declared, name, one))
        has_speed = spec.speed is not None or bool(spec.profiles)
        if not has_speed and (declared.find(one) is None or not any(map(declared.find, foreign))):
            return OneType(one, spec, foreign), one
    if not specs and all(canonical(name) for name in used):
        return base, logged
    return declared, logged


def _same(declared: Declared, name: str, other: str) -> bool:
    gpu_type = declared.find(name)
    return name.casefold() == other.casefold() or (gpu_type is not None and gpu_type == declared.find(other))


def _spec_of(specs: Mapping[str, GpuTypeSpec], name: str) -> GpuTypeSpec:
    return specs.get(_by_case(specs).get(name.casefold(), "")) or GpuTypeSpec()
