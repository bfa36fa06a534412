"""The times of a job in all configurations it may get, from what was measured, of it and of jobs of its kind.

What was measured stays as it is. For the rest, from the best evidence there is to the least:

1. this job at two counts of the type: Amdahl's law through them;
2. this job at one count of the type: from there by the F of its kind on this type, else its own F on another type,
   else that of its kind;
3. this job on another type: the ratio of the types from jobs of its kind measured on both;
4. what its owner declared, times how far that was off where this job was measured;
5. this job at one count, and nothing on how it scales: no gain from more GPUs, full loss from fewer;
6. jobs of its kind: their median;
7. its time limit.

Whatever is declared or was measured, a figure is finite and above 0: very odd ones are brought within bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from commonwatt.control.scaling import KindScaling, curves_of, lines_of, shape, stretch
from commonwatt.model.job_profile import MOST_GPU_W, Configuration, Figure, Measurement, Source, bounded_s

__all__ = ["predict"]


def predict(
    configurations: Sequence[Configuration],
    own: Iterable[Measurement],
    kind: KindScaling | None = None,
    *,
    declared_s: Mapping[Configuration, float] | None = None,
    declared_w: Mapping[str, float] | None = None,
    limit_s: float,
) -> list[Figure]:
    """Return the figures of a job, one for each of *configurations*, in their order.

    Parameters
    ----------
    configurations
        What it may get.
    own
        Measurements of this job.
    kind
        Scaling of other jobs of its kind; ``None`` if it is of no kind.
    declared_s, declared_w
        Seconds of an epoch by configuration, and watts per GPU by type, as its owner declared them.
    limit_s
        Its time limit, per epoch.
    """
    job = _Evidence(list(own), kind or KindScaling([]), dict(declared_s or {}), dict(declared_w or {}), limit_s)
    return [job.figure(there) for there in configurations]


class _Evidence:
    """All that is known of one job."""

    def __init__(
        self, own: Sequence[Measurement], kind: KindScaling, declared_s: Mapping[Configuration, float],
        declared_w: Mapping[str, float], limit_s: float,
    ) -> None:  # fmt: skip
        self._own, self._kind = own, kind
        self._declared_s = {there: bounded_s(epoch_s) for there, epoch_s in declared_s.items()}
        self._declared_w, self._limit_s = declared_w, limit_s
        self._curves = curves_of(own)
        self._lines = lines_of(self._curves)
        self._own_fraction = float(median([line.fraction for line in self._lines.values()])) if self._lines else None

    def figure(self, there: Configuration) -> Figure:
        """Return time and power in one configuration."""
        epoch_s, source = self._epoch_s(there)
        gpu_w = self._gpu_w(there)
        return Figure(there, bounded_s(epoch_s), None if gpu_w is None else min(gpu_w, MOST_GPU_W), source)

    def _gpu_w(self, there: Configuration) -> float | None:
        """Return watts per GPU: metered there, else on that type; of its kind; declared; else unknown."""
        metered = sorted(
            (m.gpus, m.measured_s, m.gpu_w) for m in self._own if m.gpu_type == there.gpu_type and m.gpu_w is not None
        )
        if metered:
            here = [gpu_w for gpus, _, gpu_w in metered if gpus == there.gpus]
            return here[-1] if here else float(median([gpu_w for _, _, gpu_w in metered]))
        similar_w = self._kind.gpu_w(there.gpu_type, there.gpus)
        return similar_w if similar_w is not None else self._declared_w.get(there.gpu_type)

    def _epoch_s(self, there: Configuration) -> tuple[float, Source]:
        row = self._curves.get(there.gpu_type)
        if row is not None and there.gpus in row:
            return row[there.gpus], Source.MEASURED
        if there.gpu_type in self._lines:
            return self._lines[there.gpu_type].at(there.gpus), Source.PREDICTED
        found = self._along(there) if row else self._across(there)
        if found is not None:
            return found
        declared_s = self._declared_s.get(there)
        if declared_s is not None:
            return declared_s * self._off(there.gpu_type), Source.DECLARED
        if row:
            ((known_gpus, known_s),) = row.items()
            return known_s * stretch(None, known_gpus, there.gpus), Source.PREDICTED
        if not self._curves:
            similar_s = self._kind.epoch_s(there.gpu_type, there.gpus)
            if similar_s is not None:
                return similar_s, Source.SIMILAR
        return self._limit_s, Source.TIME_LIMIT

    def _along(self, there: Configuration) -> tuple[float, Source] | None:
        """From the one count it was measured at on this type."""
        ((known_gpus, known_s),) = self._curves[there.gpu_type].items()
        fraction, source = self._fraction(there.gpu_type)
        return None if fraction is None else (known_s * stretch(fraction, known_gpus, there.gpus), source)

    def _across(self, there: Configuration) -> tuple[float, Source] | None:
        """From other types it was measured on."""
        fraction, _ = self._fraction(there.gpu_type)
        times_s = []
        for known_type, row in sorted(self._curves.items()):
            ratio = self._kind.ratio(there.gpu_type, known_type)
            if ratio is None:
                continue
            known_gpus, known_s = min(row.items())
            known_fraction, _ = self._fraction(known_type)
            if known_type in self._lines:
                known_gpus, known_s, known_fraction = 1, self._lines[known_type].at(1), 0.0
            if fraction is None or known_fraction is None:  # nothing is known of either
                times_s.append(ratio * known_s * stretch(None, known_gpus, there.gpus))
            else:
                times_s.append(ratio * known_s / shape(known_fraction, known_gpus) * shape(fraction, there.gpus))
        return (float(median(times_s)), Source.SIMILAR) if times_s else None

    def _fraction(self, gpu_type: str) -> tuple[float | None, Source]:
        """Return F on a type, ``None`` if nothing tells."""
        of_kind = self._kind.fractions.get(gpu_type)
        if of_kind is not None:
            return of_kind, Source.SIMILAR
        if self._own_fraction is not None:
            return self._own_fraction, Source.PREDICTED
        return self._kind.any_fraction, Source.SIMILAR

    def _off(self, gpu_type: str) -> float:
        """Return how many times longer than declared it takes: on this type if it was measured there, else on any."""
        off = {
            (known_type, gpus): known_s / self._declared_s[Configuration(known_type, gpus)]
            for known_type, row in self._curves.items()
            for gpus, known_s in row.items()
            if Configuration(known_type, gpus) in self._declared_s
        }
        here = [value for (known_type, _), value in off.items() if known_type == gpu_type] or list(off.values())
        return float(median(here)) if here else 1.0
