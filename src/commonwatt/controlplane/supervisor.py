"""Runs the controller in a thread of its own, and restarts it from store and engine whenever something fails.

Where another controller has the store, it stands by: it looks at the store until it can claim it.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from commonwatt.control.engine import LiveEngine
from commonwatt.controlplane.feed import Counters
from commonwatt.controlplane.reconciler import Reconciler
from commonwatt.controlplane.snapshot import Snapshot, SnapshotBuilder
from commonwatt.controlplane.standby import UNUSUAL_NODES, Lease, StandbyView, unusual_nodes
from commonwatt.engines.state_folder import FolderLock
from commonwatt.model.errors import (
    ClaimLostError,
    CommonwattError,
    EngineDownError,
    EngineError,
    StoreDownError,
    StoreError,
)
from commonwatt.store.claim import claim_store, try_claim
from commonwatt.store.controller_store import ControllerStore, Tick

__all__ = ["Pace", "SteadyClock", "Supervisor"]

log = logging.getLogger("commonwatt.supervisor")

_NEVER = 1 << 30
_THRESHOLDS = gc.get_threshold()  # before any supervisor of this process changes them
_GIVE_BACK_S = 15.0
_CLEAR_S = 3600.0
_CLEAR_FIRST_S = 60.0  # after the beginning
_CLEAR_FOR_S = 0.5
"""How often to delete old rows, and how long that may take at a time."""


@dataclass(frozen=True)
class Pace:
    """How often the supervisor does what; seconds.

    Attributes
    ----------
    beat_s
        Between looks at progress and meters while nothing happens.
    requests_s
        Between looks for requests: another process may have written some without waking it.
    pause_s, longest_pause_s
        After a failure, doubled with each further one.
    rest, longest_rest_s
        After a step, as a multiple of its time: where steps are long, changes are gathered for the next, and readers
        get their turn.
    standby_s
        Between attempts of a standby to claim the store.
    """

    beat_s: float = 5.0
    requests_s: float = 1.0
    pause_s: float = 0.25
    longest_pause_s: float = 30.0
    rest: float = 9.0
    longest_rest_s: float = 1.0
    standby_s: float = 0.5


@contextmanager
def _many_made(*, again: bool) -> Iterator[None]:
    """Run no full garbage collection here, then freeze the objects created so that later collections skip them.

    A full collection visits every object while no other thread runs: with 50,000 jobs it takes seconds and finds
    nothing. If this happens *again*, what is left of the last time is collected first.
    """
    if again:
        gc.unfreeze()
        gc.collect()
    gc.set_threshold(*_THRESHOLDS[:2], _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*_THRESHOLDS)
        gc.freeze()


class Supervisor:
    """The controller's thread.

    Parameters
    ----------
    make_engine
        Connects to the engine; called again after a failure.
    make_reconciler
        Builds a reconciler over an engine.
    mode
        ``live`` or ``dry-run``, where the store does not say.
    keep_s
        How long to keep rows that can be deleted; for ever if not given.
    claimed
        Called once the store is claimed, before the thread begins.
    hold
        Keeps other controllers off the engine's folder, from the claim to its end.
    standby
        The cluster as another controller writes it down; ``None``: this one does not stand by.
    """

    def __init__(
        self, store: ControllerStore, make_engine: Callable[[], LiveEngine],
        make_reconciler: Callable[[LiveEngine], Reconciler], *,
        engine_name: str, mode: str, clock: SteadyClock, pace: Pace | None = None,
        saved: Callable[[], Mapping[str, float | str | None] | None] = lambda: None, keep_s: float | None = None,
        claimed: Callable[[], None] = lambda: None,
        hold: Callable[[], FolderLock | None] = lambda: None, standby: StandbyView | None = None,
    ) -> None:  # fmt: skip
        self._hold, self._standby = hold, standby
        self._lease: Lease | None = None
        self._unusual: dict[str, list[str | int]] | None = None  # nodes, as they are written down
        self._folder_lock: FolderLock | None = None
        self._saved, self._claimed = saved, claimed
        self._store, self._make_engine, self._make_reconciler = store, make_engine, make_reconciler
        self._mode, self._clock, self._pace = mode, clock, pace or Pace()
        self._snapshot = Snapshot(clock(), mode, engine_name)
        self.counters = Counters()
        self._failures, self._has_led = 0, False  # since the last decision; ever
        self._thread: threading.Thread | None = None
        self._engine: LiveEngine | None = None
        self._stopping = threading.Event()
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._changed = threading.Condition()
        self._requests_s = -math.inf
        self._beat_s = -math.inf
        self._rested_s = -math.inf  # by a monotonic clock
        self._gave_back_s = time.monotonic()
        self._keep_s, self._cleared_s = keep_s, clock() - _CLEAR_S + _CLEAR_FIRST_S

    # -- for other threads

    def start(self) -> None:
        """Start, or stand by.

        Raises ``StoreError`` if another controller runs on the store and this one does not stand by, and what *hold*
        raises.
        """
        if not self._claim():
            assert self._standby is not None
            self._publish(self._standby.look(self._clock()))
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 180.0) -> None:
        """Stop after the current tick, or after the solvers are compiled; jobs keep running."""
        self._stopping.set()
        self.wake()
        if self._thread is not None:
            self._thread.join(timeout_s)
        if not self.alive:
            self._let_go(orderly=True)

    @property
    def active(self) -> bool:
        """Whether it has claimed the store, and does not stand by."""
        return self._store.claim is not None

    def wake(self) -> None:
        """Look for requests now."""
        self._requests_s = -math.inf
        with suppress(BlockingIOError):
            os.write(self._waker, b"!")

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def snapshot(self) -> Snapshot:
        """Return the cluster as of its last look."""
        return self._snapshot

    def wait_for(self, after: Snapshot, timeout_s: float) -> Snapshot:
        """Return the first snapshot other than *after*, or the current one after *timeout_s*."""
        with self._changed:
            self._changed.wait_for(lambda: self._snapshot is not after, timeout_s)
        return self._snapshot

    # -- the thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if not self.active and not self._stand_by():
                    self._failures = 0
                    continue
                self._lead()
            except CommonwattError as error:
                self._failures += 1
                self._trouble(error)
            except Exception as error:  # whatever it is: restart from what is written down
                self._failures += 1
                log.exception("the controller failed and restarts")
                self._trouble(error)
            if self._failures:
                pause_s = self._pace.pause_s * 2.0 ** min(self._failures, 20)
                self._stopping.wait(min(self._pace.longest_pause_s, pause_s))

    def _lead(self) -> None:
        """Begin from store and engine, and go on until a new reconciler is due, or this one stops."""
        again, self._has_led = self._has_led, True
        with _many_made(again=again):
            reconciler, builder = self._begin()
            self._step(reconciler, builder)
        while not self._stopping.is_set() and not reconciler.outgrown():
            self._step(reconciler, builder)
        if reconciler.outgrown():
            self._write(reconciler.finish())

    def _step(self, reconciler: Reconciler, builder: SnapshotBuilder) -> None:
        """Go on once, unless it is over."""
        if self._stopping.is_set() or reconciler.outgrown():
            return
        if self._go_on(reconciler, builder):
            self._failures = 0
        self._clear(reconciler)
        self._give_back()

    def _claim(self) -> bool:
        """Claim the store and the engine's folder; returns whether that was possible, or raises as ``start`` does."""
        database = self._store.database
        claim = claim_store(database) if self._standby is None else try_claim(database, lease=True)
        if claim is None:
            return False
        self._lease = Lease(claim, self.wake) if self._standby is not None else None
        try:
            self._stopping.wait(claim.settle_s)
            self._store.claim = claim
            if claim.settle_s:  # whoever was frozen meanwhile must not take the folder from the next one
                self._store.check_claim()
            self._folder_lock = self._hold()
            self._claimed()
        except BaseException:
            self._let_go()
            claim.release()
            raise
        return True

    def _let_go(self, *, orderly: bool = False) -> None:
        """Give up the claim. If *orderly*, all work has stopped and the next controller may start at once."""
        claim = self._store.claim
        with ExitStack() as last_first:  # whatever fails, the claim is given up
            if claim is not None:
                last_first.callback(claim.hand_over if orderly and self._standby is not None else claim.release)
                last_first.callback(setattr, self._store, "claim", None)
            if self._folder_lock is not None:
                last_first.callback(self._folder_lock.release)
            if self._engine is not None:
                last_first.callback(self._engine.close)
            if self._lease is not None:
                last_first.callback(self._lease.stop)
            self._lease = self._engine = self._folder_lock = self._unusual = None

    def _stand_by(self) -> bool:
        """Look at the store, and try to claim it; returns whether it is claimed now."""
        began_s = time.monotonic()
        if self._claim():
            log.warning("this controller takes over")
            return True
        assert self._standby is not None
        self._standby.get_ready()
        if began_s >= self._rested_s:
            self._publish(self._standby.look(self._clock()))
            self._rested_s = time.monotonic() + max(1.0, self._pace.rest * (time.monotonic() - began_s))
        self._clock.follow()
        self._stopping.wait(self._pace.standby_s)
        return False

    def _begin(self) -> tuple[Reconciler, SnapshotBuilder]:
        try:
            self._store.check_claim()
        except ClaimLostError:
            self._let_go()
            raise
        if self._engine is not None:
            self._engine.close()
        engine = self._engine = self._make_engine()
        reconciler = self._make_reconciler(engine)  # which may take a while: solvers are compiled
        settings = self._store.settings()
        builder = SnapshotBuilder(reconciler)
        tick = reconciler.recover(settings.get("mode", self._mode), settings.get("drained", []))
        self._write(tick)
        builder.apply(tick)
        self._requests_s = self._beat_s = -math.inf
        self._unusual = None  # what was to be written may not have been
        begun = builder.snapshot(self._snapshot, self._clock(), None)
        log.info("the controller begins", extra={"active_jobs": len(begun.jobs), "mode": reconciler.mode})
        self._publish(replace(begun, healthy=True, trouble=None, role="active"))
        return reconciler, builder

    def _go_on(self, reconciler: Reconciler, builder: SnapshotBuilder) -> bool:
        """Wait for something to do, and do it; returns whether a decision was taken."""
        clock, pace = self._clock, self._pace
        next_s = reconciler.next_s()
        due_s = min(
            math.inf if next_s is None else next_s, self._beat_s + pace.beat_s, self._requests_s + pace.requests_s
        )
        if not reconciler.engine.waiting_changes():
            reconciler.engine.inner.wait(max(0.0, due_s - clock()), self._woken)
        self._stopping.wait(max(0.0, self._rested_s - time.monotonic()))
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)
        if ahead_s := clock.follow():
            log.warning("the wall clock jumped ahead", extra={"seconds": round(ahead_s, 3)})
            reconciler.controller.past_usage.skip_time(ahead_s)
        if reconciler.take_in():
            self._requests_s = -math.inf
        now_s = clock()
        requests = []
        if now_s >= self._requests_s + pace.requests_s:
            self._requests_s = now_s
            requests = self._store.requests()
        changed = reconciler.engine.look()
        next_s = reconciler.next_s()
        decide = bool(requests) or changed or (next_s is not None and now_s >= next_s)
        if not decide and now_s < self._beat_s + pace.beat_s:
            return False
        self._beat_s, began_s = now_s, time.monotonic()
        tick = reconciler.step(requests, decide=decide)
        tick.settings["controller"] = {"time_s": now_s, "pid": os.getpid()}
        if self._standby is not None and (unusual := unusual_nodes(self._snapshot)) != self._unusual:
            tick.settings[UNUSUAL_NODES] = self._unusual = unusual
        self._write(tick)
        builder.apply(tick)
        if decide and tick.sample is not None:
            self.counters.tick(tick.sample.tick_s)
        self._publish(replace(builder.snapshot(self._snapshot, now_s, tick.sample), healthy=True, trouble=None))
        ended_s = time.monotonic()
        self._rested_s = ended_s + min(pace.longest_rest_s, pace.rest * (ended_s - began_s))
        return decide

    def _clear(self, reconciler: Reconciler) -> None:
        """Delete old rows, now and then.

        As clocks may be wrong, the earlier of ours and the wall clock counts, as far as the store trusts it.
        """
        now_s = self._clock()
        if self._keep_s is None or now_s < self._cleared_s + _CLEAR_S:
            return
        self._cleared_s = now_s
        engine, until_s = reconciler.engine.inner, time.monotonic() + _CLEAR_FOR_S

        def go_on() -> bool:
            return not self._stopping.is_set() and time.monotonic() < until_s

        before_s = self._store.trusted(now_s + min(0.0, self._clock.departed_s)) - self._keep_s
        deleted = self._store.prune(before_s, go_on=go_on)
        if engine.capabilities.prune:
            engine.prune(self._store.ended_before(engine.prunable(), before_s))
        log.info("deleted expired rows", extra={"rows": deleted})

    def _give_back(self) -> None:
        """Give freed memory back to the system now and then; only glibc's allocator has to be asked to."""
        if time.monotonic() < self._gave_back_s + _GIVE_BACK_S:
            return
        self._gave_back_s = time.monotonic()
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)

    def _write(self, tick: Tick) -> None:
        """Persist *tick*, retrying until the database answers: what it records has happened."""
        pause_s = self._pace.pause_s
        while True:
            try:
                self._store.write(tick)
            except StoreDownError as error:
                self._trouble(error)
                if self._stopping.wait(pause_s):
                    raise
                pause_s = min(self._pace.longest_pause_s, 2 * pause_s)
            else:
                return

    def _trouble(self, error: Exception) -> None:
        self.counters.error(error)
        snapshot = self._snapshot
        counts: dict[str, Any] = {}
        if isinstance(error, StoreError):
            counts = {"store_errors": snapshot.store_errors + 1}
        elif isinstance(error, EngineError):
            counts = {"engine_errors": snapshot.engine_errors + 1}
        kind = "the engine does not answer" if isinstance(error, EngineDownError) else "the controller cannot continue"
        log.error(kind, extra={"cause": str(error)})
        self._publish(replace(snapshot, healthy=False, trouble=str(error), **counts))

    def _publish(self, snapshot: Snapshot) -> None:
        with self._changed:
            saved = snapshot.saved if snapshot.role == "standby" else self._saved()
            self._snapshot = replace(snapshot, saved=saved)
            self._changed.notify_all()


class SteadyClock:
    """The wall clock when it was made, continued by a monotonic clock.

    When the wall clock is set forward, this one follows (late jobs are late); when it is set back, this one goes on,
    and is ahead until the wall clock has caught up. ``departed_s`` is the difference.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._offset_s = wall() - steady()

    def __call__(self) -> float:
        """Return the current time."""
        return self._steady() + self._offset_s

    @property
    def departed_s(self) -> float:
        """How far the wall clock is ahead of this one; negative if behind."""
        return self._wall() - self()

    def follow(self, tolerance_s: float = 1.0) -> float:
        """Catch up with a wall clock that is ahead by more than *tolerance_s*; returns by how much it was."""
        ahead_s = self.departed_s
        if ahead_s > tolerance_s:
            self._offset_s += ahead_s
            return ahead_s
        return 0.0
