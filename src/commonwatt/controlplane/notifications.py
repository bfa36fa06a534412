"""Tells people and programs what has happened to jobs: mail to their owners, webhooks to the site.

Events are read from the store, in order, by a thread of the active controller; how far each destination has got is
written down after every notification. So each is sent at least once: a second time only where a controller died between
the two. A destination that fails is tried again later, and holds up no other; what it refuses for good, or has not
taken though a day has passed, is logged and left out.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import smtplib
import ssl
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import TYPE_CHECKING, Protocol

from commonwatt.control.events import EventKind
from commonwatt.model.errors import CommonwattError, InputError
from commonwatt.model.live import MailSpec, NotifySpec, WebhookSpec
from commonwatt.store.api_store import ApiStore
from commonwatt.store.records import EventRow, JobRow

if TYPE_CHECKING:
    import httpx

__all__ = ["SETTING", "Notifier", "mail_warning", "secret_of"]

log = logging.getLogger("commonwatt.notifications")

SETTING = "notified"
"""Setting of the store: number of the last event that each destination has got, by its key."""

_EVERY_S, _LONGEST_S, _GIVE_UP_S = 2.0, 300.0, 86_400.0
_TIMEOUT_S = 10.0
_PAGE = 500
_OF_MAIL: dict[str, str] = {
    EventKind.STARTED: "begin", EventKind.COMPLETED: "end", EventKind.FAILED: "fail", EventKind.CANCELLED: "end",
    EventKind.PREEMPTED: "requeue", EventKind.INTERRUPTED: "requeue",
}  # fmt: skip


class RefusedError(Exception):
    """A destination will never take this notification."""


class Destination(Protocol):
    """Where notifications go."""

    key: str
    kinds: frozenset[str]  # of events that may be sent there

    def wants(self, event: EventRow, job: JobRow | None) -> bool:
        """Whether it receives *event*, which is one of *job*."""

    def send(self, event: EventRow, job: JobRow | None) -> None:
        """Tell it; raises ``OSError`` if it cannot be reached now, ``RefusedError`` if it will never take this."""


class Webhook:
    """POSTs events as JSON; with a secret, ``X-Commonwatt-Signature`` has ``sha256=`` and the HMAC of the body."""

    def __init__(self, spec: WebhookSpec, client: httpx.Client) -> None:
        self._spec, self._client = spec, client
        self._secret = secret_of(spec.secret_variable, "live.notify.webhooks.secret_variable")
        self.kinds: frozenset[str] = frozenset(spec.kinds)
        self.key = "webhook " + hashlib.sha256(spec.url.encode()).hexdigest()[:16]

    def wants(self, event: EventRow, job: JobRow | None) -> bool:
        """Whether kind and tenant are among those it is for."""
        of_tenant = not self._spec.tenants or (job is not None and job.tenant in self._spec.tenants)
        return of_tenant and event.kind in self.kinds

    def send(self, event: EventRow, job: JobRow | None) -> None:
        """POST the event."""
        import httpx

        body = json.dumps({
            "event": event.id, "time": datetime.fromtimestamp(event.time_s, UTC).isoformat(), "kind": event.kind,
            "job": event.job, "name": None if job is None else job.name, "tenant": None if job is None else job.tenant,
            "nodes": list(event.nodes), "gpus": event.gpus, "reason": event.reason, "text": _text(event, job),
        }).encode()  # fmt: skip
        headers = {"Content-Type": "application/json"}
        if self._secret is not None:
            headers["X-Commonwatt-Signature"] = f"sha256={hmac.new(self._secret, body, hashlib.sha256).hexdigest()}"
        try:
            code = self._client.post(self._spec.url, content=body, headers=headers).status_code
        except httpx.HTTPError as error:
            raise OSError(str(error) or type(error).__name__) from error
        if code in (408, 425, 429) or code >= 500:
            msg = f"HTTP {code}"
            raise OSError(msg)
        if code >= 300:
            msg = f"HTTP {code}"
            raise RefusedError(msg)


class Mail:
    """Mails owners the events they asked for."""

    key = "mail"
    kinds: frozenset[str] = frozenset(_OF_MAIL)

    def __init__(self, spec: MailSpec, public_url: str | None) -> None:
        self._spec, self._url = spec, public_url
        self._password = secret_of(spec.password_variable, "live.notify.mail.password_variable")

    def wants(self, event: EventRow, job: JobRow | None) -> bool:
        """Whether the job's owner asked for it, and may be written to."""
        asked = _OF_MAIL.get(event.kind)
        if job is None or job.file.mail_to is None or mail_warning(self._spec, job.file.mail_to) is not None:
            return False
        return asked in job.file.mail_on or (asked == "fail" and "end" in job.file.mail_on)

    def send(self, event: EventRow, job: JobRow | None) -> None:
        """Mail it."""
        assert job is not None
        assert job.file.mail_to is not None
        message = EmailMessage()
        message["From"], message["To"] = self._spec.sender, job.file.mail_to
        message["Subject"] = f"job {job.id} {job.name}: {event.kind}"
        message["Auto-Submitted"] = "auto-generated"
        message["Message-ID"] = f"<event-{event.id}@commonwatt.{self._spec.sender.rpartition('@')[2]}>"
        seen = f"\n{self._url}\n" if self._url else ""
        message.set_content(f"{_text(event, job)}\n\ncommonwatt explain {job.id}\n{seen}")
        try:
            with closing(self._connected()) as server:
                server.send_message(message)
                server.quit()
        except smtplib.SMTPRecipientsRefused as error:
            codes = [code for code, _ in error.recipients.values()]
            raise (RefusedError if all(code >= 500 for code in codes) else OSError)(str(error.recipients)) from error
        except smtplib.SMTPResponseException as error:
            said = f"{error.smtp_code} {error.smtp_error!r}"
            permanent = error.smtp_code >= 500 and not isinstance(error, smtplib.SMTPAuthenticationError)
            raise (RefusedError if permanent else OSError)(said) from error

    def _connected(self) -> smtplib.SMTP:
        spec, context = self._spec, ssl.create_default_context()
        server: smtplib.SMTP
        if spec.tls == "tls":
            server = smtplib.SMTP_SSL(spec.host, spec.port, timeout=_TIMEOUT_S, context=context)
        else:
            server = smtplib.SMTP(spec.host, spec.port, timeout=_TIMEOUT_S)
        try:
            if spec.tls == "starttls":
                server.starttls(context=context)
            if spec.user is not None and self._password is not None:
                server.login(spec.user, self._password.decode())
        except BaseException:
            server.close()
            raise
        return server


def _text(event: EventRow, job: JobRow | None) -> str:
    what = event.kind if job is None else f"job {job.id} {job.name} of {job.tenant}: {event.kind}"
    return f"{what}; {event.sentence}" if event.sentence else what


def mail_warning(spec: MailSpec | None, address: str) -> str | None:
    """Return why nothing is sent to *address*; ``None`` if it is."""
    if spec is None:
        return "mail_to: no mail is sent here (live.notify.mail); look with `commonwatt jobs`, or use `submit --wait`"
    domain = address.rpartition("@")[2].casefold()
    if domain not in {own.casefold() for own in spec.domains}:
        return f"mail_to: mail is sent to {', '.join(spec.domains)} only"
    return None


def secret_of(variable: str | None, field: str) -> bytes | None:
    """Return what the environment *variable* holds; raises ``InputError`` where it is not set."""
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise InputError("an environment variable that is set", field=field, value=variable)
    return os.environ[variable].encode()


@dataclass
class _Progress:
    """How far a destination has got."""

    destination: Destination
    last: int  # number of an event
    written: int  # that the store has
    again_s: float = 0.0
    failures: int = 0


class Notifier:
    """Sends notifications.

    Parameters
    ----------
    spec
        ``None``: there are none to send.
    store
        Of events and jobs.
    now_s
        The time.
    active
        Whether this controller is the active one: a standby sends nothing.
    every_s
        Pause between two looks.

    Raises
    ------
    InputError
        If the environment variable of a secret is not set.
    """

    def __init__(
        self, spec: NotifySpec | None, store: ApiStore, now_s: Callable[[], float], active: Callable[[], bool], *,
        public_url: str | None = None, every_s: float = _EVERY_S,
    ) -> None:  # fmt: skip
        self._store, self._now_s, self._active, self._every_s = store, now_s, active, every_s
        self._stopping = threading.Event()
        self._client: httpx.Client | None = None
        self._destinations = self._made(spec, public_url) if spec is not None else []
        self._progress: list[_Progress] = []
        self._thread = threading.Thread(target=self._run, name="notifications", daemon=True)

    def _made(self, spec: NotifySpec, public_url: str | None) -> list[Destination]:
        destinations: list[Destination] = []
        if spec.webhooks:
            import httpx

            self._client = httpx.Client(timeout=_TIMEOUT_S, follow_redirects=False)
            destinations += [Webhook(each, self._client) for each in spec.webhooks]
        if spec.mail is not None:
            destinations.append(Mail(spec.mail, public_url))
        return destinations

    def start(self) -> None:
        """Start, if there is anybody to notify."""
        if self._destinations:
            self._thread.start()

    def stop(self) -> None:
        """Stop after the notification that is being sent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(2 * _TIMEOUT_S)
        if self._client is not None and not self._thread.is_alive():  # TLS may write yet: closed, into another file
            self._client.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._active():
                    self.look()
                else:
                    self._progress = []  # another controller goes on
            except CommonwattError as error:
                log.warning("notifications wait for the store", extra={"cause": str(error)})
            except Exception:
                log.exception("notifications failed and go on")
            self._stopping.wait(self._every_s)

    def look(self) -> None:
        """Send what is due."""
        if not self._progress:
            self._progress = self._begun()
        for one in self._progress:
            if self._now_s() >= one.again_s and not self._stopping.is_set():
                self._serve(one)

    def _begun(self) -> list[_Progress]:
        """Go on where an earlier controller ended; a new destination gets what happens from now on."""
        kept: dict[str, int] = self._store.setting(SETTING, {})
        newest = self._store.events(limit=1, newest_first=True)
        now = newest[0].id if newest else 0
        starts = [(each, kept.get(each.key, now)) for each in self._destinations]
        progress = [_Progress(each, last, last) for each, last in starts]
        self._store.keep_setting(SETTING, {one.destination.key: one.last for one in progress})
        return progress

    def _serve(self, one: _Progress) -> None:
        while events := self._store.events(after=one.last, limit=_PAGE):
            for event in events:
                if self._stopping.is_set() or not self._active():
                    return
                if event.kind in one.destination.kinds:
                    job = None if event.job is None else self._store.job(event.job)
                    if one.destination.wants(event, job):
                        if not self._sent(one, event, job):
                            return
                        self._keep(one, event.id)
                one.last = event.id
            if one.last - one.written >= _PAGE:  # that nothing was wanted of them need not be found out again
                self._keep(one, one.last)
            if len(events) < _PAGE:
                return

    def _sent(self, one: _Progress, event: EventRow, job: JobRow | None) -> bool:
        """Send; returns whether the destination is done with it."""
        what = {"destination": one.destination.key, "event": event.id, "job": event.job}
        now_s = self._now_s()
        try:
            one.destination.send(event, job)
        except RefusedError as error:
            log.warning("a notification is refused", extra=what | {"cause": str(error)})
        except OSError as error:
            one.failures += 1
            if now_s < event.time_s + _GIVE_UP_S:
                one.again_s = now_s + min(_LONGEST_S, self._every_s * 2.0 ** min(one.failures, 20))
                if one.failures == 1:
                    log.warning("a notification is tried again later", extra=what | {"cause": str(error)})
                return False
            log.warning("a notification is given up after a day", extra=what | {"cause": str(error)})
        one.failures = 0
        return True

    def _keep(self, one: _Progress, last: int) -> None:
        one.last = one.written = last
        self._store.keep_setting(SETTING, {each.destination.key: each.written for each in self._progress})
