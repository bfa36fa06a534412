"""Leaves GPUs that few replicas share, where others have room for them: jobs may have those, or nodes sleep.

A replica moves only where the most that it has needed of late fits beside the most that the others there have needed:
what fits for a moment would have to move back. How late is the time after which layouts change only to save a GPU, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commonwatt.control.fleet.interface import ReplicaDemand
from commonwatt.model.fleet import WHOLE_MILLI

__all__ = ["Consolidator", "Move", "SharedRoom"]


@dataclass(frozen=True)
class SharedRoom:
    """A GPU that is shared in time.

    Attributes
    ----------
    replicas
        Its replicas: key, service, and reserved thousandths.
    others_milli
        Reserved by those that do not move: fractional jobs, and replicas that leave or have just come.
    """

    gpu: int
    gpu_type: str
    replicas: tuple[tuple[int, int, int], ...]
    others_milli: int


@dataclass(frozen=True)
class Move:
    """A replica by its key, and the shared GPU where it starts anew."""

    replica: int
    gpu: int


class Consolidator:
    """Plans moves that leave GPUs.

    Parameters
    ----------
    window_s
        For how long what replicas have needed must have fitted.
    """

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._seen: dict[int, deque[tuple[float, ReplicaDemand]]] = {}  # by service, without gaps

    def note(self, now_s: float, demands: Mapping[int, ReplicaDemand]) -> None:
        """Take note of what services need from now on."""
        self._seen = {service: self._seen.get(service, deque()) for service in demands}
        for service, demand in demands.items():
            seen = self._seen[service]
            seen.append((now_s, demand))
            while len(seen) > 1 and seen[1][0] <= now_s - self.window_s:
                seen.popleft()

    def peak_milli(self, service: int, gpu_type: str, now_s: float) -> int | None:
        """Return the most thousandths of such a GPU that a replica has needed; ``None``: it does not move there.

        As where its service has not been known for long enough, or has had more replicas meanwhile.
        """
        seen = self._seen.get(service)
        if not seen or seen[0][0] > now_s - self.window_s or any(gpu_type not in d.milli for _, d in seen):
            return None
        if max(demand.replicas for _, demand in seen) > seen[-1][1].replicas:
            return None
        return max(demand.milli[gpu_type] for _, demand in seen)

    def moves(self, now_s: float, rooms: Sequence[SharedRoom]) -> list[Move]:
        """Return the replicas to move, such that GPUs are left: first those on which least is reserved."""
        taken = {room.gpu: self._taken(room, now_s) for room in rooms}
        services = {room.gpu: {service for _, service, _ in room.replicas} for room in rooms}
        kept: set[int] = set()
        left: set[int] = set()
        moves: list[Move] = []
        for room in sorted(rooms, key=lambda room: (taken[room.gpu], room.gpu)):
            if room.gpu in kept or room.others_milli or not room.replicas:
                continue
            trial, own = dict(taken), []
            for key, service, _ in sorted(room.replicas, key=lambda row: (-row[2], row[0])):
                target = self._target(service, now_s, trial, [
                    other for other in rooms
                    if other.gpu not in left and other.gpu != room.gpu and service not in services[other.gpu]
                ])  # fmt: skip
                if target is None:
                    break
                peak = self.peak_milli(service, target.gpu_type, now_s)
                trial[target.gpu] += peak or 0
                own.append((Move(key, target.gpu), service))
            if len(own) < len(room.replicas):
                continue
            taken = trial
            left.add(room.gpu)
            for move, service in own:
                moves.append(move)
                kept.add(move.gpu)
                services[move.gpu].add(service)
        return moves

    def _taken(self, room: SharedRoom, now_s: float) -> int:
        """Return the thousandths that those on a GPU have reserved, or have needed of late, whichever is more."""
        needed = (max(milli, self.peak_milli(s, room.gpu_type, now_s) or milli) for _, s, milli in room.replicas)
        return room.others_milli + sum(needed)

    def _target(
        self, service: int, now_s: float, taken: Mapping[int, int], rooms: Sequence[SharedRoom]
    ) -> SharedRoom | None:
        """Return the fullest of *rooms* that has room for a replica; not one that nobody would stay on."""
        best: tuple[int, int] | None = None
        found: SharedRoom | None = None
        for room in rooms:
            peak = self.peak_milli(service, room.gpu_type, now_s)
            if peak is None or not (room.replicas or room.others_milli):
                continue
            left = WHOLE_MILLI - taken[room.gpu] - peak
            if left >= 0 and (best is None or (left, room.gpu) < best):
                best, found = (left, room.gpu), room
        return found
