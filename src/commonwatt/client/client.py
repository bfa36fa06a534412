"""The client: a method for each thing one can ask of the control plane, with typed answers."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote

from commonwatt.client.link import Link
from commonwatt.client.settings import find_settings
from commonwatt.data.files import validate
from commonwatt.model.errors import InputError, ServiceError
from commonwatt.model.job_file import JobFile
from commonwatt.model.live_results import (
    AuditEntry,
    AuditPage,
    ClusterState,
    EventEntry,
    EventPage,
    Explanation,
    JobDetail,
    JobPage,
    JobState,
    LedgerPage,
    ModeState,
    NewToken,
    NodePage,
    NodeState,
    SamplePage,
    SubmittedJob,
    TenantPage,
    TenantState,
    TokenPage,
    WhoAmI,
)
from commonwatt.model.names import check_in_address

__all__ = ["Client"]

ACTIVE = ("waiting", "running")
_AWAY = frozenset({0, 429, 502, 503, 504})
"""What is answered, by the server or a proxy before it, while it is started anew or busy; 0: nothing."""

_KEY = re.compile(r"[!-~]{1,128}")

_log = logging.getLogger("commonwatt.client")


class Client:
    """A client of the live control plane.

    Parameters
    ----------
    url, token
        Where the server is, and with which token; what is not given is looked for in ``COMMONWATT_URL`` and
        ``COMMONWATT_TOKEN``, then in ``~/.config/commonwatt/client.yaml``.
    timeout_s
        Longest time without a sign of the server.
    retries
        Times a request is sent again that failed for a reason that may pass. What must not be done twice (making a
        token) is sent again only if it certainly did not arrive.

    Raises
    ------
    InputError
        From every method: what was asked for is wrong.
    ServiceError
        From every method: the request was refused (``status`` of HTTP), or the server cannot be reached (0).

    Examples
    --------
    ::

        with Client() as client:
            job = client.submit({"name": "train", "command": "python train.py", "gpus": 2, "epochs": 90})
            print(client.explain(job.id).sentence)
            done = client.wait(job.id)
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, *, timeout_s: float = 30.0, retries: int = 5,
        transport: Any = None,  # noqa: ANN401
    ) -> None:  # fmt: skip
        self._link = Link(find_settings(url, token), timeout_s=timeout_s, retries=retries, transport=transport)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._link.url

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def whoami(self) -> WhoAmI:
        """Return whose token this is."""
        return self._link.ask(WhoAmI, "GET", "/whoami")

    # -- jobs

    def submit(
        self, job: JobFile | Mapping[str, Any], *, tenant: str | None = None, key: str | None = None
    ) -> SubmittedJob:
        """Submit a job, once: if the answer is lost, it is sent again with the same *key* (a new one if not given).

        Operators name the *tenant*.
        """
        file = job if isinstance(job, JobFile) else validate(dict(job), JobFile)
        if key and not _KEY.fullmatch(key):
            raise InputError("up to 128 characters of ASCII without blanks", field="key", value=key)
        return self._link.ask(
            SubmittedJob, "POST", "/jobs", params={"tenant": tenant}, body=file.model_dump(mode="json"),
            headers={"Idempotency-Key": key or secrets.token_urlsafe(24)},
        )  # fmt: skip

    def job_page(
        self, *, status: Sequence[str] = (), tenant: str | None = None, newest_first: bool = False, cursor: int = 0,
        limit: int = 100,
    ) -> JobPage:  # fmt: skip
        """Return one page of jobs."""
        params = {
            "status": list(status), "tenant": tenant, "newest_first": newest_first, "cursor": cursor, "limit": limit
        }  # fmt: skip
        return self._link.ask(JobPage, "GET", "/jobs", params=params)

    def jobs(
        self, *, status: Sequence[str] = (), tenant: str | None = None, newest_first: bool = False, page: int = 500
    ) -> Iterator[JobState]:
        """Yield jobs by number, fetched *page* by page."""
        cursor: int | None = 0
        while cursor is not None:
            found = self.job_page(status=status, tenant=tenant, newest_first=newest_first, cursor=cursor, limit=page)
            yield from found.jobs
            cursor = found.next_cursor

    def ended(self, *, tenant: str | None = None, limit: int = 100) -> JobPage:
        """Return the jobs that ended last, the last first."""
        return self._link.ask(JobPage, "GET", "/jobs/ended", params={"tenant": tenant, "limit": limit})

    def job(self, job: int) -> JobDetail:
        """Return everything about a job."""
        return self._link.ask(JobDetail, "GET", f"/jobs/{int(job)}")

    def explain(self, job: int) -> Explanation:
        """Return why a job runs where it does, or waits."""
        return self._link.ask(Explanation, "GET", f"/jobs/{int(job)}/explain")

    def log(self, job: int, *, last_bytes: int = 65536) -> str:
        """Return the end of what a job printed."""
        return str(self._link.send("GET", f"/jobs/{int(job)}/log", params={"last_bytes": last_bytes}).text)

    def cancel(self, job: int) -> JobState:
        """Cancel a job."""
        return self._link.ask(JobState, "POST", f"/jobs/{int(job)}/cancel")

    def hold(self, job: int) -> JobState:
        """Keep a job from being started until it is released; if it runs, it goes on."""
        return self._link.ask(JobState, "POST", f"/jobs/{int(job)}/hold")

    def release(self, job: int) -> JobState:
        """Let a job that is held be started again."""
        return self._link.ask(JobState, "POST", f"/jobs/{int(job)}/release")

    def wait(
        self, job: int, *, timeout_s: float | None = None, poll_s: float = 2.0,
        on_change: Callable[[JobDetail], None] = lambda _: None, on_away: Callable[[str], None] = _log.warning,
    ) -> JobDetail:  # fmt: skip
        """Return a job once it has ended; *on_change* is told of every state seen before.

        While the server cannot be reached or is busy, it is asked again and again; *on_away* is told why, once each
        time it goes away. Raises ``ServiceError`` (408) if the job has not ended after *timeout_s*, as far as is known.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s, away = min(0.1, poll_s), False
        while True:
            try:
                seen = self.job(job)
            except ServiceError as error:
                if error.status not in _AWAY:
                    raise
                if not away:
                    on_away(str(error))
                away, last = True, str(error)
            else:
                away, last = False, f"it is {seen.status}"
                on_change(seen)
                if seen.status not in ACTIVE:
                    return seen
            if until_s is not None and time.monotonic() >= until_s:
                raise ServiceError(f"job {job} has not ended after {timeout_s:g} s: {last}", 408)
            time.sleep(pause_s)
            pause_s = min(poll_s, 1.5 * pause_s)

    def events(
        self, *, job: int | None = None, after: int = 0, newest_first: bool = False, page: int = 500
    ) -> Iterator[EventEntry]:
        """Yield what has happened so far beyond number *after*: to all jobs one may see, or to one."""
        path = "/events" if job is None else f"/jobs/{int(job)}/events"
        params: dict[str, Any] = {"after": after, "newest_first": newest_first, "limit": page}
        while True:
            found = self._link.ask(EventPage, "GET", path, params=params)
            yield from found.events
            if len(found.events) < page:
                return
            params["before" if newest_first else "after"] = found.events[-1].id

    # -- the cluster

    def cluster(self) -> ClusterState:
        """Return the cluster after the last tick of the controller."""
        return self._link.ask(ClusterState, "GET", "/cluster")

    def nodes(self) -> NodePage:
        """Return all nodes."""
        return self._link.ask(NodePage, "GET", "/nodes")

    def drain(self, node: str) -> NodeState:
        """Give a node no further jobs (operators)."""
        return self._link.ask(NodeState, "POST", f"/nodes/{_node(node)}/drain")

    def undrain(self, node: str) -> NodeState:
        """Let a drained node have jobs again (operators)."""
        return self._link.ask(NodeState, "POST", f"/nodes/{_node(node)}/undrain")

    def set_mode(self, mode: str) -> ModeState:
        """Go ``live``, or only write decisions down (``dry-run``; operators)."""
        return self._link.ask(ModeState, "POST", "/mode", body={"mode": mode})

    def tenants(self) -> TenantPage:
        """Return tenants with their entitlement, energy and GPU time."""
        return self._link.ask(TenantPage, "GET", "/tenants")

    def set_tenant(self, name: str, weight: float) -> TenantState:
        """Enter a tenant, or change its weight (operators)."""
        part = quote(check_in_address(name, "tenant"), safe="")
        return self._link.ask(TenantState, "PUT", f"/tenants/{part}", body={"weight": weight})

    def ledger(self) -> LedgerPage:
        """Return energy, cost, carbon and GPU time."""
        return self._link.ask(LedgerPage, "GET", "/ledger")

    def samples(self, *, since_s: float = 0.0, limit: int = 1000) -> SamplePage:
        """Return the cluster over time, since *since_s* (seconds since 1970)."""
        return self._link.ask(SamplePage, "GET", "/samples", params={"since": since_s, "limit": limit})

    # -- for operators

    def tokens(self) -> TokenPage:
        """Return all tokens, without their secrets."""
        return self._link.ask(TokenPage, "GET", "/tokens")

    def add_token(self, tenant: str | None, label: str = "unnamed") -> NewToken:
        """Make a token of *tenant*, or (``None``) of an operator."""
        return self._link.ask(NewToken, "POST", "/tokens", body={"tenant": tenant, "label": label}, again=False)

    def revoke(self, token: int) -> None:
        """Make a token worthless."""
        self._link.send("DELETE", f"/tokens/{int(token)}", again=False)

    def audit(self, *, after: int = 0, page: int = 500) -> Iterator[AuditEntry]:
        """Yield who changed what, or tried to."""
        while True:
            found = self._link.ask(AuditPage, "GET", "/audit", params={"after": after, "limit": page})
            yield from found.audit
            if len(found.audit) < page:
                return
            after = found.next_after


def _node(name: str) -> str:
    try:
        return quote(check_in_address(name, "node"), safe="")
    except InputError:
        raise ServiceError(f"there is no node {name!r}", 404) from None
