"""Requests about objects whose webhooks may be slow, or hang: who decides does not wait for them.

Among them what users see of decisions: Events, and annotations of their Jobs and gangs.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, TypeVar

from commonwatt.engines.kubernetes.api import DENIED, KubernetesApi, RefusedByServerError, path_of
from commonwatt.engines.kubernetes.user_gang import KINDS
from commonwatt.model.errors import EngineDownError, EngineError

__all__ = ["About", "LateError", "Pauses", "annotate", "post_event"]

log = logging.getLogger("commonwatt.kubernetes")

_Of = TypeVar("_Of")
_SLOW_S = 1.0
_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 300.0
_WAIT_S = 1.0  # for answers: decisions go on
_QUICK_S = 0.025  # an answer is not late
_ANSWER_S = 30.0  # for so long an answer that came late is one to the same request
_SAID_AGAIN_S = 60.0
_MOST_OPEN = 8  # requests of one namespace and resource that nobody waits for
_MOST_DUE, _TRIES = 2000, 3  # of what is sent in the background, for one namespace and resource
_MOST_KINDS = 40  # that are open in all, and that are sent for: of the connections that there are

_LONGEST_MESSAGE = 1024  # of an Event
_LONGEST_NAME = 200
_NOT_THERE = frozenset({404, 409})


class LateError(RefusedByServerError):
    """There is no answer yet, and nobody waits any longer: if it was sent, it goes on, and may be executed."""


@dataclass(frozen=True, slots=True)
class _Late:
    """A request that may not be answered yet, about an object as its caller saw it, and since when."""

    asked: object
    seen: object
    at_s: float
    answer: Future[Any]


class Pauses:
    """Of what hangs: it is waited for briefly, and not asked again for a while, longer each time.

    An API, or a webhook for the objects of a namespace, may be down, or hang, where the server is not. Each request
    then takes its whole time limit, and whoever waits for it does nothing else.

    No answer for longer than *slow_s* is followed by a pause of *least_s*, each further time by twice as much; an
    answer halves the next one. What is answered within 25 ms is quick. For all that is not, *wait_s* is spent on
    waiting, and after that a tenth of all time; a tenth of *wait_s* on one where the last came late.
    """

    def __init__(
        self, api: KubernetesApi, least_s: float = _PAUSE_S, *, slow_s: float = _SLOW_S, wait_s: float = _WAIT_S
    ) -> None:
        self._api, self._least_s, self._slow_s, self._wait_s = api, least_s, slow_s, wait_s
        self._of: dict[Hashable, tuple[float, float, str]] = {}  # until when, for how long, and why ("": it answered)
        self._late: dict[tuple[Hashable, Hashable], _Late] = {}  # by kind and object
        self._slow: set[Hashable] = set()  # kinds whose last answer was late
        self._said_s: dict[Hashable, float] = {}  # when that was logged last
        self._patience_s, self._at_s = wait_s, time.monotonic()  # what may be spent on waiting, as of then
        self._charged_s = self._at_s  # until then, waiting was charged: what is waited for side by side, once
        self._due: dict[Hashable, deque[tuple[Callable[..., object], tuple[Any, ...]]]] = {}  # in the background
        self._lock = threading.RLock()

    @classmethod
    def left_or_new(cls, api: KubernetesApi) -> Pauses:
        """Return what an earlier engine of this process has left open at the same server, else new ones.

        So requests about one object keep their order, whichever engine makes them.
        """
        left = _LEFT.pop(api.access.server, None)
        if left is None or not left.busy:
            if left is not None:
                left._api.close()  # noqa: SLF001
            return cls(api)
        left._api = api  # noqa: SLF001
        return left

    def close(self) -> None:
        """Close the connections, unless a thread uses them: the next engine of this process has what is open."""
        if self.busy:
            _LEFT[self._api.access.server] = self
        else:
            self._api.close()

    @property
    def busy(self) -> bool:
        """Whether requests that nobody waits for use connections of the server's client."""
        with self._lock:
            return bool(self._due) or any(not late.answer.done() for late in self._late.values())

    def ask(
        self, of: Hashable, request: Callable[..., _Of], *what: Any,  # noqa: ANN401
        about: Hashable = None, seen: object = None,
    ) -> _Of:  # fmt: skip
        """Return the answer to a *request* for objects *of* some kind and namespace; in a pause, without asking.

        Requests *about* one object keep their order.

        Raises what it raises, but one of ``DENIED`` instead of ``EngineDownError`` while the server is ready, and
        ``LateError`` if it, or one before it, is not answered yet: who asks for the same again gets that answer, as
        long as the object as it is *seen* is the same.
        """
        try:
            return self._soon(of, about, seen, request, *what)
        except EngineDownError as error:
            if isinstance(error, DENIED) or not self._api.ready():
                raise
            said = f"the API server is there, but a webhook or the API of its kind may hang: {error}"
            raise RefusedByServerError(503, "ServiceUnavailable", said) from error

    def hangs(self, of: Hashable) -> str:
        """Return why objects *of* a kind and namespace are better not asked for now, in words; "": they may be."""
        if why := self.paused(of):
            return why
        now_s = time.monotonic()
        with self._lock:
            slow = any(
                kind == of and not late.answer.done() and now_s > late.at_s + 2 * self._slow_s
                for (kind, _), late in self._late.items()
            )  # fmt: skip
        return "earlier requests are not answered yet" if slow else ""

    def paused(self, of: Hashable) -> str:
        """Return why objects *of* a kind and namespace are not asked for now, in words; "": they are."""
        until_s, _, why = self._of.get(of, (0.0, 0.0, ""))
        return why if time.monotonic() < until_s else ""

    def is_unsettled(self, of: Hashable, about: Hashable) -> bool:
        """Whether an answer about an object came late, or did not come: what is known of it may not be so any more."""
        return (of, about) in self._late

    def hung(self, of: Hashable) -> bool:
        """Whether the last request for objects *of* a kind and namespace had no answer."""
        return self._of.get(of, (0.0, 0.0, ""))[2] != ""

    def _soon(self, of: Hashable, about: Hashable, seen: object, request: Callable[..., _Of], *what: Any) -> _Of:  # noqa: ANN401
        key = of, about
        with self._lock:
            late, now_s = self._late.get(key), time.monotonic()
            if late is not None and not late.answer.done():
                raise LateError(503, "ServiceUnavailable", "it has not answered an earlier request yet")
            self._late = {
                each: one for each, one in self._late.items()
                if not one.answer.done() or (each != key and now_s <= one.at_s + _ANSWER_S)
            }  # fmt: skip
            same = late is not None and late.asked == (request, what) and late.seen is seen
            if late is not None and same and now_s <= late.at_s + _ANSWER_S:
                return late.answer.result()
            self._check_pause(of)
            waiting = [kind for (kind, _), one in self._late.items() if not one.answer.done()]
            if waiting.count(of) >= _MOST_OPEN or len(waiting) >= _MOST_KINDS:
                raise LateError(503, "ServiceUnavailable", "it has not answered earlier requests yet")
            wait_s = self._waits_s(of, now_s)
            own = self._late[key] = _Late((request, what), seen, now_s, _begun(self._asked, of, request, *what))
        answered = bool(wait([own.answer], wait_s).done)
        with self._lock:
            self._charge(now_s + (_QUICK_S if answered else 0.0))
            if not answered:
                if now_s > self._said_s.get(of, -math.inf) + _SAID_AGAIN_S:
                    self._said_s[of] = now_s
                    log.info("answers are slow: nobody waits for them", extra={"of": str(of), "waited_s": wait_s})
                self._slow.add(of)
                raise LateError(503, "ServiceUnavailable", "it has not answered yet")
            self._slow.discard(of)
            if self._late.get(key) is own:
                del self._late[key]
        return own.answer.result()

    def _waits_s(self, of: Hashable, now_s: float) -> float:
        """Return how long an answer is waited for: where it may be quick, long enough for that."""
        self._patience_s = min(self._wait_s, self._patience_s + 0.1 * (now_s - self._at_s))
        self._at_s = now_s
        if of in self._slow or self.hung(of):
            return max(0.0, min(self._patience_s, self._wait_s / 10))
        return max(_QUICK_S, self._patience_s)

    def _charge(self, since_s: float) -> None:
        now_s = time.monotonic()
        self._patience_s -= max(0.0, now_s - max(since_s, self._charged_s))
        self._charged_s = now_s

    def send(self, of: Hashable, request: Callable[..., object], *what: Any) -> bool:  # noqa: ANN401
        """Make a request in the background, after those that were sent before; one that fails is logged.

        Returns whether it will be made: if not, as too many wait, it is to be sent again later.
        """
        with self._lock:
            full = len(self._due) >= _MOST_KINDS and of not in self._due
            due = self._due.get(of, deque()) if full else self._due.setdefault(of, deque())
            if full or len(due) >= _MOST_DUE:
                log.warning("too many Events wait to be sent: further ones have to wait", extra={"of": str(of)})
                return False
            due.append((request, what))
            if len(due) == 1:
                _begun(self._send_all, of, due)
        return True

    def _send_all(self, of: Hashable, due: deque[tuple[Callable[..., object], tuple[Any, ...]]]) -> None:
        tries = 0
        while True:
            request, what = due[0]
            try:
                self._asked(of, request, *what)
            except Exception as error:  # whatever it is, others wait behind it
                tries += 1
                if isinstance(error, EngineDownError) and tries < _TRIES:
                    time.sleep(max(1.0, self._of.get(of, (0.0,))[0] - time.monotonic()))
                    continue
                log.warning("an Event or annotation is left out", extra={"of": str(of), "cause": str(error)})
            tries = 0
            with self._lock:
                due.popleft()
                if not due:
                    del self._due[of]
                    return

    def _asked(self, of: Hashable, request: Callable[..., _Of], *what: Any) -> _Of:  # noqa: ANN401
        self._check_pause(of)
        pause_s, began_s = self._of.get(of, (0.0, 0.0, ""))[1], time.monotonic()
        try:
            answer = request(*what)
        except EngineError as error:
            now_s = time.monotonic()
            answered = isinstance(error, RefusedByServerError) and error.status < 500  # by a webhook, too: in its time
            with self._lock:
                if answered or now_s <= began_s + self._slow_s:
                    self._relax(of)
                elif now_s >= self._of.get(of, (0.0, 0.0, ""))[0]:  # no other request was slower by a moment
                    pause_s = min(_LONGEST_PAUSE_S, max(self._least_s, 2 * pause_s))
                    self._of[of] = now_s + pause_s, pause_s, str(error) or "no answer"
                    log.warning("what hangs is not asked again for a while", extra={"of": str(of), "pause_s": pause_s,
                                "took_s": round(now_s - began_s, 1), "cause": str(error)})  # fmt: skip
            raise
        with self._lock:
            self._relax(of)
            if time.monotonic() <= began_s + self._wait_s / 4:
                self._slow.discard(of)
        return answer

    def _check_pause(self, of: Hashable) -> None:
        until_s, _, why = self._of.get(of, (0.0, 0.0, ""))
        if time.monotonic() < until_s:
            msg = f"no such request is made for a while, as the last one had no answer: {why}"
            raise EngineDownError(msg)

    def _relax(self, of: Hashable) -> None:
        """Halve the next pause, as there was an answer: a single one does not make what hangs often count as new."""
        pause_s = self._of.pop(of, (0.0, 0.0, ""))[1] / 2
        if pause_s >= self._least_s / 2:
            self._of[of] = 0.0, pause_s, ""


_LEFT: dict[str, Pauses] = {}
"""By API server: what was open when its engine was closed."""


def _begun(request: Callable[..., _Of], *what: Any) -> Future[_Of]:  # noqa: ANN401
    """Make a request in a thread of its own, which ends with the process: a pool's would be waited for."""
    future: Future[_Of] = Future()

    def run() -> None:
        try:
            future.set_result(request(*what))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="kubernetes-request").start()
    return future


@dataclass(frozen=True, slots=True)
class About:
    """The object that an Event is about: a Job, a gang, or a Pod."""

    kind: str
    namespace: str
    name: str
    uid: str

    @property
    def group(self) -> str:
        """Its group and version."""
        return KINDS[self.kind].group if self.kind in KINDS else "v1"


def post_event(api: KubernetesApi, about: About, key: str, reason: str, message: str, at_s: float) -> bool:
    """Create an Event; returns whether it is new. Its name follows from *key*: told twice, it is there once.

    A reason that begins with ``Not``, or is ``Failed``, is a warning. Raises ``EngineError`` if the server does not
    answer, or does not allow it.
    """
    digest = blake2b(f"{about.uid} {key}".encode(), digest_size=8).hexdigest()
    when = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": f"{about.name[:_LONGEST_NAME]}.{digest}", "namespace": about.namespace},
        "involvedObject": {
            "apiVersion": about.group, "kind": about.kind, "namespace": about.namespace, "name": about.name,
            "uid": about.uid,
        },
        "type": "Warning" if reason.startswith("Not") or reason == "Failed" else "Normal", "reason": reason,
        "message": message[:_LONGEST_MESSAGE], "firstTimestamp": when, "lastTimestamp": when, "count": 1,
        "source": {"component": "commonwatt"}, "reportingComponent": "commonwatt",
    }  # fmt: skip
    path = path_of("events", about.namespace)
    try:
        try:
            api.create(path, body)
        except EngineDownError:
            api.create(path, body)
    except RefusedByServerError as error:
        if error.status not in _NOT_THERE:
            raise
        return False
    return True


def annotate(api: KubernetesApi, about: About, notes: Mapping[str, str | None]) -> None:
    """Set annotations of an object, or remove them (``None``); one that is gone, or another of its name, is left alone.

    Raises ``EngineError`` as ``post_event`` does.
    """
    path = path_of(f"{about.kind.lower()}s", about.namespace, about.name, group=about.group)
    try:
        api.merge(path, {"metadata": {"uid": about.uid, "annotations": dict(notes)}})
    except RefusedByServerError as error:
        another = error.status == 422 and "metadata.uid" in str(error)
        if error.status not in _NOT_THERE and not another:
            raise
