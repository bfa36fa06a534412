"""Qualities of service (QOS) and associations, as Slurm's accounting has them.

A limit of a QOS comes before the same limit of an association. Of an association, what all its jobs have together
(Slurm's ``Grp``) is limited at every level: of the user, of the account, and of every account above it. What a user
has, or a job (``Max``), is limited by the nearest of these that says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field

from commonwatt.model.errors import FieldError
from commonwatt.model.fields import FileModel, quantity

__all__ = [
    "QOS_SCOPES", "AccountTree", "Association", "AssociationSpecs", "GpuCounts", "Limits", "Qos", "QosScope",
    "QosSpecs", "check_qos", "check_tree",
]  # fmt: skip

QosScope = Literal["all", "account", "user"]
QOS_SCOPES: tuple[QosScope, ...] = ("all", "account", "user")
"""Whose jobs a limit counts together: all of the QOS, those of an account (tenant), or those of a user."""

GpuCounts = dict[str, Annotated[int, Field(ge=0)]]
"""GPUs by their type."""

NO_SHARE = 1e-9
"""Weight of an account without shares: a weight of 0 has no part to be divided by."""


class Limits(NamedTuple):
    """Largest numbers at once of jobs (``None``: no limit), and of GPUs by type; those of any type under ""."""

    jobs: int | None
    gpus: Mapping[str, int]

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return self.jobs is not None or bool(self.gpus)


def _limits(jobs: int | None, gpus: int | None, gpus_of: Mapping[str, int]) -> Limits:
    return Limits(jobs, dict(gpus_of) if gpus is None else {"": gpus, **gpus_of})


class Qos(FileModel):
    """A quality of service; a limit that is null is none."""

    name: str = quantity("name of the QOS", "-", min_length=1)
    priority: float = quantity("its priority, of which `qos_weight` weighs the part of the highest", "-", 0.0, ge=0)
    max_jobs: int | None = quantity("running jobs at once (GrpJobs)", "jobs", None, ge=0)
    max_gpus: int | None = quantity("GPUs of running jobs (GrpTRES)", "GPUs", None, ge=0)
    max_gpus_of: GpuCounts = quantity("the same by GPU type", "GPUs", dict)
    max_jobs_per_account: int | None = quantity("running jobs of a tenant (MaxJobsPerAccount)", "jobs", None, ge=0)
    max_gpus_per_account: int | None = quantity("GPUs of a tenant's jobs (MaxTRESPerAccount)", "GPUs", None, ge=0)
    max_gpus_per_account_of: GpuCounts = quantity("the same by GPU type", "GPUs", dict)
    max_jobs_per_user: int | None = quantity("running jobs of a user (MaxJobsPerUser)", "jobs", None, ge=0)
    max_gpus_per_user: int | None = quantity("GPUs of a user's jobs (MaxTRESPerUser)", "GPUs", None, ge=0)
    max_gpus_per_user_of: GpuCounts = quantity("the same by GPU type", "GPUs", dict)
    max_gpus_per_job: int | None = quantity("GPUs of one job (MaxTRES), should it be resized", "GPUs", None, ge=0)
    max_gpus_per_job_of: GpuCounts = quantity("the same by GPU type", "GPUs", dict)

    preempts: tuple[str, ...] = quantity(
        "QOS whose running jobs its waiting jobs may preempt, under every scheduler (Preempt)", "-", ()
    )
    preempt_mode: Literal["requeue", "cancel", "off"] = quantity(
        "whether its jobs wait again when they are preempted; cancel: they do here, too; off: they are not preempted "
        "(PreemptMode)",
        "-", "requeue",
    )  # fmt: skip
    exempt_s: float = quantity("its jobs run at least so long before they are preempted (PreemptExemptTime)",
                               "s", 0.0, ge=0)  # fmt: skip
    grace_s: float = quantity("its jobs run on so long once they are to be preempted (GraceTime)", "s", 0.0, ge=0)

    def limits(self, scope: QosScope) -> Limits:
        """Return the largest numbers of jobs and of GPUs at once for *scope*."""
        suffix = "" if scope == "all" else f"_per_{scope}"
        gpus = getattr(self, f"max_gpus{suffix}"), getattr(self, f"max_gpus{suffix}_of")
        return _limits(getattr(self, f"max_jobs{suffix}"), *gpus)

    @property
    def of_job(self) -> Mapping[str, int]:
        """Largest numbers of GPUs of one job, by type; "": of any."""
        return _limits(None, self.max_gpus_per_job, self.max_gpus_per_job_of).gpus


class Association(FileModel):
    """An account, or a user in an account, with its shares and limits; a limit that is null is none."""

    account: str = quantity("name of the account, which is the tenant of its jobs", "-", min_length=1)
    user: str = quantity("name of the user; empty: the account itself", "-", "")
    partition: str = quantity("of a user: the partition it is for; empty: all others", "-", "")
    parent: str = quantity("account that the account is in; empty: none", "-", "")
    shares: float | None = quantity(
        "its claim beside the others in the account above (Fairshare): tenants weigh by it in fair-share; null: it has "
        "no claim of its own, its members claim beside it (`parent`)",
        "-", 1.0, ge=0,
    )  # fmt: skip
    max_jobs: int | None = quantity("running jobs at once of all below it (GrpJobs)", "jobs", None, ge=0)
    max_gpus: int | None = quantity("GPUs of the running jobs of all below it (GrpTRES)", "GPUs", None, ge=0)
    max_gpus_of: GpuCounts = quantity("the same by GPU type", "GPUs", dict)
    max_jobs_per_user: int | None = quantity(
        "running jobs of each user in it, if nothing nearer to the user says another number (MaxJobs)",
        "jobs", None, ge=0,
    )  # fmt: skip
    max_gpus_per_job: int | None = quantity(
        "GPUs of one job, should it be resized; else as `max_jobs_per_user` (MaxTRES)", "GPUs", None, ge=0
    )
    max_gpus_per_job_of: GpuCounts = quantity("the same by GPU type", "GPUs", dict)

    @property
    def name(self) -> tuple[str, str, str]:
        """Account, user and partition."""
        return self.account, self.user, self.partition

    @property
    def limits(self) -> Limits:
        """What all below it may have at once."""
        return _limits(self.max_jobs, self.max_gpus, self.max_gpus_of)

    @property
    def of_job(self) -> Mapping[str, int]:
        """Largest numbers of GPUs of one job, by type; "": of any."""
        return _limits(None, self.max_gpus_per_job, self.max_gpus_per_job_of).gpus

    @property
    def any_limit(self) -> bool:
        """Whether it has a limit."""
        return self.limits.any or self.max_jobs_per_user is not None or bool(self.of_job)


def check_qos(qos: Sequence[Qos]) -> Sequence[Qos]:
    """Return *qos*; raises ``FieldError`` for a name twice, and for QOS that preempt unknown ones or each other."""
    names = [one.name for one in qos]
    if twice := [name for name in names if names.count(name) > 1]:
        raise FieldError("distinct names", value=f"{twice[0]!r} twice")
    preempts = {one.name: one.preempts for one in qos}
    for one in qos:
        if lacking := [name for name in one.preempts if name not in preempts]:
            raise FieldError("the name of a QOS listed here", field="preempts", value=lacking[0])
        reached, left = set[str](), list(one.preempts)
        while left:
            if (name := left.pop()) == one.name:
                expected = "QOS that do not preempt each other, nor themselves"
                raise FieldError(expected, field="preempts", value=f"a circle through {one.name!r}")
            if name not in reached:
                reached.add(name)
                left += preempts[name]
    return qos


def check_tree(associations: Sequence[Association]) -> Sequence[Association]:
    """Return *associations*; raises ``FieldError`` for one that is there twice, and accounts in unknown or own ones."""
    seen: set[tuple[str, str, str]] = set()
    for one in associations:
        shown = ", ".join(filter(None, one.name))
        if one.name in seen:
            raise FieldError("each account, and each user of an account, once", value=f"{shown!r} twice")
        seen.add(one.name)
        if one.partition and not one.user:
            raise FieldError("a partition of users only", value=f"the account {one.account!r} with one")
        if one.parent and one.user:
            raise FieldError("a parent of accounts only", value=f"{shown!r} with one")
    parents = {one.account: one.parent for one in associations if not one.user}
    for account, parent in parents.items():
        if parent and parent not in parents:
            raise FieldError("parents that are accounts listed here", value=f"{parent!r}, the parent of {account!r}")
        above, steps = parent, 0
        while above and steps <= len(parents):
            above, steps = parents[above], steps + 1
        if above:
            raise FieldError("accounts that are not in themselves", value=f"{account!r}")
    return associations


QosSpecs = Annotated[tuple[Qos, ...], AfterValidator(check_qos)]
AssociationSpecs = Annotated[tuple[Association, ...], AfterValidator(check_tree)]


class AccountTree:
    """Associations by account and user."""

    def __init__(self, associations: Sequence[Association]) -> None:
        self._accounts = {one.account: one for one in associations if not one.user}
        self._users = {one.name: one for one in associations if one.user}
        self._named = self._accounts.keys() | {account for account, *_ in self._users}

    def levels(self, account: str, user: str, partitions: Sequence[str] = ()) -> list[Association]:
        """Return the associations of a user's jobs, from the user's own up; empty for an unknown account.

        A user who is not known in the account has one without limits of its own.
        """
        if account not in self._named:
            return []
        own = [self._users.get((account, user, partition)) for partition in (*partitions, "")]
        first = next(filter(None, own), Association(account=account, user=user)) if user else None
        return [*([first] if first else []), *self._above(account)]

    def _above(self, account: str) -> Iterator[Association]:
        while account in self._accounts:
            yield self._accounts[account]
            account = self._accounts[account].parent

    @cached_property
    def weights(self) -> dict[str, float]:
        """Weights of accounts by their shares, as a part of all that shares at the top add up to.

        Where no account is in another, these are the shares themselves. An account that has both users and accounts
        in it weighs as much as its users do beside these.
        """
        members: dict[str, list[Association]] = {}  # by the account in which they claim, "" at the top
        for one in (*self._accounts.values(), *self._users.values()):
            if one.shares is not None:
                members.setdefault(self._claims_in(one.account if one.user else one.parent), []).append(one)
        total = {account: sum(one.shares or 0.0 for one in own) for account, own in members.items()}

        def part(account: str) -> float:
            if not account:
                return 1.0
            above = self._claims_in(self._accounts[account].parent)
            return part(above) * _part(self._accounts[account].shares or 0.0, total[above])

        top = self._claims_in(members[""][0].account) if len(members.get("", ())) == 1 else ""
        scale = total.get(top) or 1.0
        weights: dict[str, float] = {}
        for account in sorted(self._named):
            pool = self._claims_in(account)
            own = [one for one in members.get(pool, ()) if one.user and one.account == account]
            alone = pool == account and all(one.user for one in members.get(pool, ()))
            of_pool = 1.0 if alone else _part(sum(one.shares or 0.0 for one in own), total.get(pool, 0.0))
            weights[account] = max(NO_SHARE, part(pool) * of_pool * scale)
        return weights

    def _claims_in(self, account: str) -> str:
        """Return the account itself, or the first one above it that has shares of its own; "": none has."""
        return next((one.account for one in self._above(account) if one.shares is not None), "")


def _part(shares: float, total: float) -> float:
    return shares / total if total > 0 else 0.0
