"""The queue of jobs to be measured: order, what is dropped, and how much is looked at."""

from __future__ import annotations

from commonwatt.controlplane import measurements
from commonwatt.controlplane.measurements import ProbeQueue

V, T = ("V", 2), ("T", 1)


class World:
    """Jobs with something left, by sort of node."""

    def __init__(self, count: int) -> None:
        self.left = {V: set(range(count)), T: set()}
        self.active = set(range(count))
        self.looked = 0
        self.queue = ProbeQueue([V, T], self._is_left, self.active.__contains__)
        for handle in range(count):
            self.queue.put(handle)
        self.looked = 0

    def _is_left(self, handle, sort) -> bool:
        self.looked += 1
        return handle in self.left[sort]


def yes(_) -> bool:
    return True


def test_the_first_that_may_begin_comes_first_and_keeps_its_place():
    queue = World(4).queue
    assert queue.first(V, yes) == 0
    assert queue.first(V, lambda handle: handle > 1) == 2
    assert queue.first(V, yes) == 0


def test_what_has_nothing_left_or_is_over_is_dropped_for_the_sorts_it_concerns():
    world = World(4)
    assert (world.queue.waiting(V), world.queue.waiting(T)) == (4, 0)
    world.active.discard(0)
    world.left[V] -= {1, 3}
    assert world.queue.first(V, lambda handle: handle != 2) is None
    assert world.queue.waiting(V) == 1
    world.looked = 0
    assert world.queue.first(V, lambda handle: handle != 2) is None
    assert world.looked == 0
    world.left[T] = {3}
    world.queue.put(3)
    assert (world.queue.first(V, yes), world.queue.first(T, yes)) == (2, 3)


def test_a_step_looks_at_some_of_many_and_the_next_at_others(monkeypatch):
    monkeypatch.setattr(measurements, "_LOOKS", 10)
    world, asked = World(35), []

    def last(handle) -> bool:
        asked.append(handle)
        return handle == 34

    found = [world.queue.first(V, last) for _ in range(4)]
    assert found == [None, None, None, 34]
    assert asked == list(range(35))
