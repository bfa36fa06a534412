"""The client of the control plane: a method for each request, with typed results."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from commonwatt.client.connection import Link, find_settings
from commonwatt.data.files import validate
from commonwatt.model.errors import InputError, ServiceError
from commonwatt.model.job_file import JobFile
from commonwatt.model.live_results import (
    AuditEntry,
    AuditPage,
    CapacityState,
    ClusterState,
    EventEntry,
    EventPage,
    FairnessState,
    JobDetail,
    JobExplanation,
    JobPage,
    JobState,
    LedgerPage,
    LoginOffer,
    ModeState,
    NewToken,
    NodePage,
    NodeState,
    PhiState,
    SamplePage,
    ServicePage,
    SubmittedJob,
    TenantPage,
    TenantState,
    TokenPage,
    TokenRole,
    WhoAmI,
)
from commonwatt.model.names import check_in_address

__all__ = ["Client"]

ACTIVE = ("waiting", "running")
_AWAY = frozenset({0, 429, 502, 503, 504})
"""Statuses from the server, or a proxy in front of it, while it restarts or is busy; 0: no response."""

_KEY, _TEXT = re.compile(r"[!-~]{1,128}"), re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,128}")
_log = logging.getLogger("commonwatt.client")


class Client:
    """A client of the live control plane.

    Parameters
    ----------
    url, token
        URL and token of the server; by default from ``COMMONWATT_URL`` and ``COMMONWATT_TOKEN``, then from
        a login (``commonwatt login``) or ``~/.config/commonwatt/client.yaml``; without any, over the Unix socket of
        this machine, if there is one. ``unix:PATH`` is a URL, too.
    timeout_s
        Longest time without data from the server.
    retries
        Number of times a request is repeated after a failure that may be temporary. A request that must not be carried
        out twice (creating a token) is repeated only if it certainly did not arrive.

    Raises
    ------
    InputError
        From every method, if the request is invalid.
    ServiceError
        From every method, if the request is refused (HTTP ``status``) or the server cannot be reached (status 0).

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
        ca_file: Path | None = None,
    ) -> None:  # fmt: skip
        self._link = Link(
            find_settings(url, token, ca_file=ca_file), timeout_s=timeout_s, retries=retries, transport=transport
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """URL of the server."""
        return self._link.url

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def whoami(self) -> WhoAmI:
        """Return who makes requests: the owner of the token, the person or the Unix user."""
        return self._link.ask(WhoAmI, "GET", "/whoami")

    def login_offer(self) -> LoginOffer:
        """Return where people sign in. Raises ``ServiceError`` (404) where that is nowhere."""
        return self._link.ask(LoginOffer, "GET", "/login")

    # -- jobs

    def submit(
        self, job: JobFile | Mapping[str, Any], *, tenant: str | None = None, key: str | None = None
    ) -> SubmittedJob:
        """Submit a job, an operator for *tenant*; requests with the same *key* (by default a random one) make one."""
        file = job if isinstance(job, JobFile) else validate(dict(job), JobFile)
        body = file.model_dump(mode="json", exclude_defaults=True)  # an older server knows fewer fields
        if key and not _KEY.fullmatch(key):
            raise InputError("up to 128 ASCII characters without blanks", field="key", value=key)
        headers, of = {"Idempotency-Key": key or secrets.token_urlsafe(24)}, {"tenant": tenant}
        return self._link.ask(SubmittedJob, "POST", "/jobs", params=of, body=body, headers=headers)

    def job_page(
        self, *, status: Sequence[str] = (), tenant: str | None = None, find: str | None = None,
        newest_first: bool = False, cursor: int = 0, limit: int = 100,
    ) -> JobPage:  # fmt: skip
        """Return one page of jobs; with *find*, of those whose name contains it, or whose number it is."""
        if find is not None and not _TEXT.fullmatch(find):
            raise InputError("1 to 128 characters of text", field="find", value=find)
        asked: dict[str, Any] = {"status": [*status], "tenant": tenant, "find": find, "newest_first": newest_first}
        return self._link.ask(JobPage, "GET", "/jobs", params=asked | {"cursor": cursor, "limit": limit})

    def jobs(
        self, *, status: Sequence[str] = (), tenant: str | None = None, find: str | None = None,
        newest_first: bool = False, page: int = 500,
    ) -> Iterator[JobState]:  # fmt: skip
        """Yield jobs by number, as ``job_page`` returns them, fetched in pages of *page* jobs."""
        which: dict[str, Any] = {"status": status, "tenant": tenant, "find": find, "newest_first": newest_first}
        cursor: int | None = 0
        while cursor is not None:
            fetched = self.job_page(**which, cursor=cursor, limit=page)
            yield from fetched.jobs
            cursor = fetched.next_cursor

    def ended(self, *, tenant: str | None = None, limit: int = 100) -> JobPage:
        """Return ended jobs, the latest first."""
        return self._link.ask(JobPage, "GET", "/jobs/ended", params={"tenant": tenant, "limit": limit})

    def job(self, job: int) -> JobDetail:
        """Return all about a job."""
        return self._link.ask(JobDetail, "GET", f"/jobs/{int(job)}")

    def explain(self, job: int) -> JobExplanation:
        """Return why a job runs where it does, or waits."""
        return self._link.ask(JobExplanation, "GET", f"/jobs/{int(job)}/explain")

    def log(self, job: int, *, last_bytes: int = 65536, attempt: int | None = None) -> str:
        """Return the end of the output of a job's run number *attempt*, or of its current or last one."""
        params = {"last_bytes": last_bytes, "attempt": attempt}
        return str(self._link.send("GET", f"/jobs/{int(job)}/log", params=params).text)

    def follow_log(self, job: int, *, attempt: int | None = None, poll_s: float = 1.0) -> Iterator[tuple[int, str]]:
        """Yield the number of the run and what it has printed since, until the job has ended.

        Begins with the first byte of the current run; with *attempt*, only that run is followed.
        """
        run, after = attempt, 0
        while True:
            state = self.job(job)
            run = run or state.attempts or None
            while run is not None and run <= state.attempts:
                params = {"attempt": run, "after": after, "last_bytes": 1_000_000}
                try:
                    answer = self._link.send("GET", f"/jobs/{int(job)}/log", params=params)
                except ServiceError as error:
                    if error.status != 404:
                        raise
                    break  # nothing is there yet
                after = int(answer.headers["Commonwatt-Next"])
                if not answer.text:
                    break
                yield run, str(answer.text)
            if run is not None and run < state.attempts:
                if attempt is not None:
                    return
                run, after = run + 1, 0
            elif state.status not in ACTIVE:
                return
            else:
                time.sleep(poll_s)

    def cancel(self, job: int) -> JobState:
        """Cancel a job."""
        return self._link.ask(JobState, "POST", f"/jobs/{int(job)}/cancel")

    def hold(self, job: int) -> JobState:
        """Do not start a job until it is released; a running job continues."""
        return self._link.ask(JobState, "POST", f"/jobs/{int(job)}/hold")

    def release(self, job: int) -> JobState:
        """Allow a held job to start again."""
        return self._link.ask(JobState, "POST", f"/jobs/{int(job)}/release")

    def wait(
        self, job: int, *, timeout_s: float | None = None, poll_s: float = 2.0,
        on_change: Callable[[JobDetail], None] = lambda _: None, on_away: Callable[[str], None] = _log.warning,
    ) -> JobDetail:  # fmt: skip
        """Return a job once it has ended; *on_change* is called with each state before.

        While the server cannot be reached or is busy, the request is repeated; *on_away* is called with the reason once
        per interruption. Raises ``ServiceError`` (408) if the job is not known to have ended after *timeout_s*.
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
        """Yield the events so far after number *after*: of all visible jobs, or of one."""
        path = "/events" if job is None else f"/jobs/{int(job)}/events"
        params: dict[str, Any] = {"after": after, "newest_first": newest_first, "limit": page}
        while True:
            fetched = self._link.ask(EventPage, "GET", path, params=params)
            yield from fetched.events
            if len(fetched.events) < page:
                return
            params["before" if newest_first else "after"] = fetched.events[-1].id

    # -- the cluster

    def cluster(self) -> ClusterState:
        """Return the cluster after the last tick of the controller."""
        return self._link.ask(ClusterState, "GET", "/cluster")

    def nodes(self) -> NodePage:
        """Return all nodes."""
        return self._link.ask(NodePage, "GET", "/nodes")

    def capacity(self, *, hours: float = 24.0) -> CapacityState:
        """Return which GPUs the capacity plan keeps on, and what it did in the last *hours* (operators)."""
        return self._link.ask(CapacityState, "GET", "/capacity", params={"hours": hours})

    def services(self) -> ServicePage:
        """Return the inference services: replicas, requests, latency, energy."""
        return self._link.ask(ServicePage, "GET", "/services")

    def set_phi(self, phi: float) -> PhiState:
        """Set phi of all shared GPUs (operators)."""
        return self._link.ask(PhiState, "POST", "/phi", body={"phi": phi})

    def set_fairness(self, phi: float) -> FairnessState:
        """Set phi of what the policy guarantees tenants (operators)."""
        return self._link.ask(FairnessState, "POST", "/fairness", body={"phi": phi})

    def drain(self, node: str) -> NodeState:
        """Drain a node (operators): let running jobs finish, start no new ones."""
        return self._link.ask(NodeState, "POST", f"/nodes/{_node(node)}/drain")

    def undrain(self, node: str) -> NodeState:
        """Allow jobs on a drained node again (operators)."""
        return self._link.ask(NodeState, "POST", f"/nodes/{_node(node)}/undrain")

    def set_mode(self, mode: str) -> ModeState:
        """Set the mode: ``live``, ``power`` or ``dry-run``, in which decisions are only recorded (operators)."""
        return self._link.ask(ModeState, "POST", "/mode", body={"mode": mode})

    def tenants(self) -> TenantPage:
        """Return tenants with their entitlement, energy and GPU time."""
        return self._link.ask(TenantPage, "GET", "/tenants")

    def set_tenant(self, name: str, weight: float) -> TenantState:
        """Add a tenant, or change its weight (operators)."""
        part = quote(check_in_address(name, "tenant"), safe="")
        return self._link.ask(TenantState, "PUT", f"/tenants/{part}", body={"weight": weight})

    def ledger(self) -> LedgerPage:
        """Return energy, cost, carbon and GPU time."""
        return self._link.ask(LedgerPage, "GET", "/ledger")

    def samples(self, *, since_s: float = 0.0, limit: int = 1000) -> SamplePage:
        """Return the cluster over time from *since_s* on (seconds since 1970)."""
        return self._link.ask(SamplePage, "GET", "/samples", params={"since": since_s, "limit": limit})

    # -- for operators

    def tokens(self) -> TokenPage:
        """Return all tokens, without their secrets."""
        return self._link.ask(TokenPage, "GET", "/tokens")

    def add_token(
        self, tenant: str | None, label: str = "unnamed", *, role: TokenRole | None = None,
        expires_in_s: float | None = None,
    ) -> NewToken:  # fmt: skip
        """Create a token of *tenant*, or (``None``) of an operator, with a *role*; it may expire."""
        more = {"role": role, "expires_in_s": expires_in_s}
        body = {"tenant": tenant, "label": label} | {name: value for name, value in more.items() if value is not None}
        return self._link.ask(NewToken, "POST", "/tokens", body=body, again=False)

    def revoke(self, token: int) -> None:
        """Revoke a token."""
        self._link.send("DELETE", f"/tokens/{int(token)}", again=False)

    def audit(self, *, after: int = 0, page: int = 500) -> Iterator[AuditEntry]:
        """Yield changes and attempted changes, with their authors."""
        while True:
            fetched = self._link.ask(AuditPage, "GET", "/audit", params={"after": after, "limit": page})
            yield from fetched.audit
            if len(fetched.audit) < page:
                return
            after = fetched.next_after


def _node(name: str) -> str:
    try:
        return quote(check_in_address(name, "node"), safe="")
    except InputError:
        raise ServiceError(f"there is no node {name!r}", 404) from None
