"""Keeps the controller going: in a thread of its own, begun anew from store and engine whenever something fails."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from commonwatt.control.engine import ForgetfulEngine, LiveEngine
from commonwatt.engines.state import Held
from commonwatt.live.board import Board
from commonwatt.live.clock import SteadyClock
from commonwatt.live.session import Session
from commonwatt.live.tally import Tally
from commonwatt.live.view import View
from commonwatt.model.errors import CommonwattError, EngineDownError, EngineError, StoreDownError, StoreError
from commonwatt.store.ticks import Tick, TickStore

__all__ = ["Keeper", "Pace"]

log = logging.getLogger("commonwatt.keeper")

_CLEAR_S = 3600.0
_CLEAR_FIRST_S = 60.0  # after the beginning
_CLEAR_FOR_S = 0.5
"""How often to delete what is old, and how long it may take at a time."""


@dataclass(frozen=True)
class Pace:
    """How often the keeper does what; seconds.

    Attributes
    ----------
    beat_s
        Between looks at progress and meters when nothing happens.
    requests_s
        Between looks for requests nobody woke it for: another process may have written them.
    pause_s, longest_pause_s
        After a failure, doubled with each one more.
    rest, longest_rest_s
        After a step, as a multiple of its own time: where steps are long, what comes meanwhile waits for one of them,
        and those who only ask get their turn.
    """

    beat_s: float = 5.0
    requests_s: float = 1.0
    pause_s: float = 0.25
    longest_pause_s: float = 30.0
    rest: float = 9.0
    longest_rest_s: float = 1.0


class Keeper:
    """The controller's thread.

    Parameters
    ----------
    make_engine
        Connects to the engine; called anew after a failure.
    make_session
        Builds a session over a store and an engine.
    mode
        ``live`` or ``dry-run``, where the store does not say.
    keep_s
        How long to keep what can be deleted; for ever if not given.
    claimed
        Called once the store is claimed, before the thread begins.
    settled
        Called in the controller's thread once it has begun, or begun anew, and taken a first decision.
    hold
        Keeps other controllers off the engine's folder, from the start to the stop.
    """

    def __init__(
        self, store: TickStore, make_engine: Callable[[], LiveEngine], make_session: Callable[[LiveEngine], Session], *,
        engine_name: str, mode: str, clock: SteadyClock, pace: Pace | None = None,
        saved: Callable[[], Mapping[str, float | str | None] | None] = lambda: None, keep_s: float | None = None,
        settled: Callable[[], None] = lambda: None, claimed: Callable[[], None] = lambda: None,
        hold: Callable[[], Held | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._hold = hold
        self._held: Held | None = None
        self._saved, self._settled, self._claimed = saved, settled, claimed
        self._store, self._make_engine, self._make_session = store, make_engine, make_session
        self._mode, self._clock, self._pace = mode, clock, pace or Pace()
        self._board = Board(clock(), mode, engine_name)
        self.tally = Tally()
        self._thread: threading.Thread | None = None
        self._engine: LiveEngine | None = None
        self._stopping = threading.Event()
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._changed = threading.Condition()
        self._requests_s = -math.inf
        self._beat_s = -math.inf
        self._rested_s = -math.inf  # on the clock nobody sets
        self._keep_s, self._cleared_s = keep_s, clock() - _CLEAR_S + _CLEAR_FIRST_S

    # -- for everybody

    def start(self) -> None:
        """Begin; raises ``StoreError`` if another controller runs on the store, and what *hold* raises."""
        claim = self._store.claim = self._store.database.claim()
        try:
            self._held = self._hold()
            self._claimed()
        except BaseException:
            if self._held is not None:
                self._held.release()
            claim.release()
            raise
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 30.0) -> None:
        """End after the present tick; jobs go on."""
        self._stopping.set()
        self.wake()
        if self._thread is not None:
            self._thread.join(timeout_s)
        if self._store.claim is not None and not self.alive:
            self._store.claim.release()
        if self._held is not None and not self.alive:
            self._held.release()

    def wake(self) -> None:
        """Have it look for requests now."""
        self._requests_s = -math.inf
        with suppress(BlockingIOError):
            os.write(self._waker, b"!")

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def board(self) -> Board:
        """Return what it knew after its last look."""
        return self._board

    def wait_for(self, after: Board, timeout_s: float) -> Board:
        """Return the first board other than *after*, or the present one after *timeout_s*."""
        with self._changed:
            self._changed.wait_for(lambda: self._board is not after, timeout_s)
        return self._board

    # -- the thread

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                session, view = self._begin()
                settled = False
                while not self._stopping.is_set() and not session.outgrown():
                    if self._go_on(session, view):
                        failures = 0
                        settled = settled or self._settle()
                    self._clear(session)
                if session.outgrown():
                    self._write(session.finish())
            except CommonwattError as error:
                failures += 1
                self._trouble(error)
            except Exception as error:  # whatever it is: begin anew from what is written down
                failures += 1
                log.exception("the controller failed and begins anew")
                self._trouble(error)
            if failures:
                self._stopping.wait(min(self._pace.longest_pause_s, self._pace.pause_s * 2.0 ** min(failures, 20)))

    def _settle(self) -> bool:
        self._settled()
        return True

    def _begin(self) -> tuple[Session, View]:
        if self._store.claim is not None and not self._store.claim.held():
            self._store.claim.release()
            self._store.claim = self._store.database.claim()
        if self._engine is not None and (close := getattr(self._engine, "close", None)) is not None:
            close()
        engine = self._engine = self._make_engine()
        session = self._make_session(engine)
        settings = self._store.settings()
        rows, tick = session.recover(settings.get("mode", self._mode), settings.get("drained", []))
        self._write(tick)
        view = View(session, rows)
        view.apply(tick)
        self._requests_s = self._beat_s = -math.inf
        log.info("the controller begins", extra={"active_jobs": len(rows), "mode": session.mode})
        self._publish(replace(view.board(self._board, self._clock(), None), healthy=True, trouble=None))
        return session, view

    def _go_on(self, session: Session, view: View) -> bool:
        """Wait for something to do, and do it; says whether a decision was taken."""
        clock, pace = self._clock, self._pace
        next_s = session.next_s()
        due_s = min(
            math.inf if next_s is None else next_s, self._beat_s + pace.beat_s, self._requests_s + pace.requests_s
        )
        if not session.durable.waiting_changes():
            session.durable.engine.wait(max(0.0, due_s - clock()), self._woken)  # type: ignore[attr-defined]
        self._stopping.wait(max(0.0, self._rested_s - time.monotonic()))
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)
        if ahead_s := clock.follow():
            log.warning("the wall clock jumped ahead", extra={"seconds": round(ahead_s, 3)})
            session.controller.pass_over(ahead_s)
        now_s = clock()
        requests = []
        if now_s >= self._requests_s + pace.requests_s:
            self._requests_s = now_s
            requests = self._store.requests()
        changed = session.durable.look()
        next_s = session.next_s()
        decide = bool(requests) or changed or (next_s is not None and now_s >= next_s)
        if not decide and now_s < self._beat_s + pace.beat_s:
            return False
        self._beat_s, began_s = now_s, time.monotonic()
        tick = session.step(requests, decide=decide)
        tick.settings["controller"] = {"time_s": now_s, "pid": os.getpid()}
        self._write(tick)
        view.apply(tick)
        if decide and tick.sample is not None:
            self.tally.tick(tick.sample.tick_s)
        self._publish(replace(view.board(self._board, now_s, tick.sample), healthy=True, trouble=None))
        ended_s = time.monotonic()
        self._rested_s = ended_s + min(pace.longest_rest_s, pace.rest * (ended_s - began_s))
        return decide

    def _clear(self, session: Session) -> None:
        """Now and then, delete what is older than it is kept, unless there is something else to do.

        Clocks are wrong now and then: the earlier of ours and the wall's counts, as far as the store trusts it.
        """
        now_s = self._clock()
        if self._keep_s is None or now_s < self._cleared_s + _CLEAR_S:
            return
        self._cleared_s = now_s
        engine, until_s = session.durable.engine, time.monotonic() + _CLEAR_FOR_S

        def go_on() -> bool:
            return not self._stopping.is_set() and time.monotonic() < until_s

        before_s = self._store.trusted(now_s + min(0.0, self._clock.departed_s)) - self._keep_s
        deleted = self._store.prune(before_s, go_on=go_on)
        if isinstance(engine, ForgetfulEngine):
            engine.forget(self._store.ended_before(engine.remembered(), before_s))
        log.info("what is old was deleted", extra={"rows": deleted})

    def _write(self, tick: Tick) -> None:
        """Write *tick* down, however long the database is away: what happened has happened."""
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
        self.tally.error(error)
        board = self._board
        counts: dict[str, Any] = {}
        if isinstance(error, StoreError):
            counts = {"store_errors": board.store_errors + 1}
        elif isinstance(error, EngineError):
            counts = {"engine_errors": board.engine_errors + 1}
        kind = "the engine does not answer" if isinstance(error, EngineDownError) else "the controller is held up"
        log.error(kind, extra={"cause": str(error)})
        self._publish(replace(board, healthy=False, trouble=str(error), **counts))

    def _publish(self, board: Board) -> None:
        with self._changed:
            self._board = replace(board, saved=self._saved())
            self._changed.notify_all()
