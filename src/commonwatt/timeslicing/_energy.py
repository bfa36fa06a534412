"""Whose energy it was: a meter's reading divided among tenants and an idle row, and what that teaches about power.

Steps last milliseconds, meters answer ten times a second at best (ETF section 5). So each step is booked with
modelled energy (a profile's, or a power model's), and at the end of a window of many steps all rows of the window
are scaled to what the meter says: tenants plus idle sum to the meter. One factor for each row, measured over
modelled, is learnt from window to window by recursive least squares, as windows differ in who ran for how long; it
corrects the powers that slices are computed from (the paper's last paragraph of section 5).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from commonwatt.model.arrays import Floats

__all__ = ["IDLE", "EnergyLedger", "EnergyWindow", "PowerCorrection"]

IDLE = ""
"""Name of the idle row; no tenant can be called so."""


class PowerCorrection:
    """Factors from modelled to measured power, one for each row; recursive least squares with forgetting.

    Parameters
    ----------
    doubt
        Variance of a factor before anything is measured; 0.25: the model may well be 50% off.
    noise
        Variance of a window's energy relative to its square: 0.02 ** 2 for a meter good to 2%.
    memory
        How much of what was learnt is kept from window to window.
    """

    def __init__(self, doubt: float = 0.25, noise: float = 4e-4, memory: float = 0.98) -> None:
        self._doubt, self._noise, self._memory = doubt, noise, memory
        self._rows: dict[str, int] = {}
        self._factors: Floats = np.zeros(0)
        self._covariance: Floats = np.zeros((0, 0))

    def factor(self, row: str) -> float:
        """Return measured over modelled power of *row*; 1 while nothing is known."""
        place = self._rows.get(row)
        return 1.0 if place is None else float(self._factors[place])

    def learn(self, modelled_j: dict[str, float], meter_j: float) -> None:
        """Learn from a window: modelled energy by row, and what the meter says of all of them together."""
        used = {row: energy for row, energy in modelled_j.items() if energy > 0}
        if not used or not meter_j > 0:
            return
        for row in used:
            if row not in self._rows:
                self._grow(row)
        scale = sum(used.values())
        x = np.zeros(len(self._rows))
        for row, energy in used.items():
            x[self._rows[row]] = energy / scale
        seen = x > 0
        kept = self._covariance.copy()
        kept[np.ix_(seen, seen)] /= self._memory
        spread = kept @ x
        gain = spread / (x @ spread + self._noise)
        self._factors = np.clip(self._factors + gain * (meter_j / scale - x @ self._factors), 0.05, 20.0)
        self._covariance = np.clip(kept - np.outer(gain, spread), -self._doubt, self._doubt)

    def _grow(self, row: str) -> None:
        n = len(self._rows)
        self._rows[row] = n
        self._factors = np.append(self._factors, 1.0)
        covariance = np.zeros((n + 1, n + 1))
        covariance[:n, :n] = self._covariance
        covariance[n, n] = self._doubt
        self._covariance = covariance


@dataclass
class EnergyWindow:
    """Time and modelled energy booked since the last settlement, by tenant."""

    time_ns: dict[str, int] = field(default_factory=dict)
    modelled_j: dict[str, float] = field(default_factory=dict)
    typical_j: dict[str, float] = field(default_factory=dict)  # at the mean power of the models that ran


class EnergyLedger:
    """Energy by tenant, and of idling; with a meter, scaled to it.

    Parameters
    ----------
    idle_w
        Modelled power while nothing runs.
    """

    def __init__(self, idle_w: float) -> None:
        self.idle_w = idle_w
        self.idle_ns = 0
        self.idle_j = 0.0
        self.meter_j: float | None = None  # energy of all windows closed with a meter
        self.windows_measured = 0
        self.correction = PowerCorrection()
        self._window = EnergyWindow()

    def book(self, tenant: str, time_ns: int, modelled_j: float, typical_w: float) -> None:
        """Note a step of *tenant*: time, modelled energy, and the mean power of the model it belongs to."""
        window = self._window
        window.time_ns[tenant] = window.time_ns.get(tenant, 0) + time_ns
        window.modelled_j[tenant] = window.modelled_j.get(tenant, 0.0) + modelled_j
        window.typical_j[tenant] = window.typical_j.get(tenant, 0.0) + typical_w * time_ns * 1e-9

    def settle(self, wall_ns: int, meter_j: float | None) -> tuple[dict[str, float], dict[str, float]]:
        """Close a window of *wall_ns*, in which a meter counted *meter_j* (``None``: there is none).

        Returns, by tenant, what is to be added to its booked energy so that all rows sum to the meter, and the
        power its next slices should be computed from.
        """
        window, self._window = self._window, EnergyWindow()
        idle_ns = max(0, wall_ns - sum(window.time_ns.values()))
        modelled = window.modelled_j | {IDLE: self.idle_w * idle_ns * 1e-9}
        scaled = self._scaled(modelled, meter_j)
        self.idle_ns += idle_ns
        self.idle_j += scaled[IDLE]
        powers = {
            tenant: self.correction.factor(tenant) * energy / (window.time_ns[tenant] * 1e-9)
            for tenant, energy in window.typical_j.items()
            if window.time_ns[tenant] > 0
        }
        return {tenant: scaled[tenant] - modelled[tenant] for tenant in window.modelled_j}, powers

    def _scaled(self, modelled: dict[str, float], meter_j: float | None) -> dict[str, float]:
        if meter_j is None:
            return modelled
        self.meter_j = (self.meter_j or 0.0) + meter_j
        self.windows_measured += 1
        self.correction.learn(modelled, meter_j)
        expected = {row: self.correction.factor(row) * energy for row, energy in modelled.items()}
        total = sum(expected.values())
        if total <= 0:  # nothing was modelled: all of it is idling
            return {row: meter_j if row == IDLE else 0.0 for row in modelled}
        return {row: energy * meter_j / total for row, energy in expected.items()}
