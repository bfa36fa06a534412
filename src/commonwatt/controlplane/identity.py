"""Reads what the configuration says about identity, certificates and Unix users, and what it promises to tenants.

All of it is checked before the control plane starts, for ``serve`` and ``check`` alike.
"""

from __future__ import annotations

import os
import pwd
import ssl
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from commonwatt.controlplane.notifications import secret_of
from commonwatt.controlplane.preflight_engines import warning
from commonwatt.controlplane.state import state_of
from commonwatt.data.certificates import tls_context, trust
from commonwatt.model.admin_results import CheckLine
from commonwatt.model.errors import InputError, MissingExtraError
from commonwatt.model.identity import Grant
from commonwatt.model.scenario import Scenario

__all__ = [
    "Peers", "broken_promises", "check_identity", "divides_by_weight", "identity_checks", "peers_of", "shared_user",
    "socket_path",
]  # fmt: skip

_LONGEST_PATH = 107  # bytes of sun_path, without its end
_SOCKET = "live.server.socket"


@dataclass(frozen=True)
class Peers:
    """Who may do what over the Unix socket.

    Attributes
    ----------
    grants
        Roles by the number of the Unix user.
    names
        Names of these users.
    jobs_as
        User that jobs run as, who is therefore nobody over the socket; ``None``: no such user.
    """

    grants: Mapping[int, tuple[Grant, ...]] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)
    jobs_as: str | None = None


def socket_path(config: Scenario, folder: Path) -> Path | None:
    """Return the path of the Unix socket; ``None`` if there is none."""
    spec = config.live.server.socket
    return None if spec is None else folder / spec.path


def _jobs_uid(config: Scenario) -> int | None:
    """Return the user that jobs run as on this machine, or may; ``None``: jobs have users of their own, or none run."""
    runs_jobs = config.engine == "local" or (config.engine == "slurm" and not config.live.slurm.read_only)
    return os.geteuid() if runs_jobs and not config.live.users_of(config.engine) else None


def peers_of(config: Scenario) -> Peers:
    """Return the roles of Unix users. Raises ``InputError`` on a role that would make jobs more than their tenant.

    Root and the user of this process are operators. A user that jobs run as has no role: whoever submits a job would
    have it. Its tenant may be given to it, since its jobs are the tenant's.
    """
    spec = config.live.server.socket
    if spec is None:
        return Peers()
    jobs_uid = _jobs_uid(config)
    grants: dict[int, tuple[Grant, ...]] = {
        uid: (Grant(role="operator"),) for uid in {0, os.geteuid()} if uid != jobs_uid
    }
    of_tenants: dict[int, set[str]] = {}
    for tenant, name in config.live.users_of(config.engine).items():
        of_tenants.setdefault(_uid(name, f"live.{config.engine}.users.{tenant}"), set()).add(tenant)
    for number, grant in enumerate(spec.users):
        where = f"{_SOCKET}.users.{number}"
        uid = _uid(grant.user, f"{where}.user")
        if uid == jobs_uid:
            expected = "a user that no jobs run as: jobs of all tenants run as this one"
            raise InputError(expected, field=f"{where}.user", value=grant.user)
        if uid == _nobody():
            expected = "a user other than the one that the kernel shows for users it cannot name"
            raise InputError(expected, field=f"{where}.user", value=grant.user)
        if uid in of_tenants and (of_tenants[uid] != {grant.tenant} or grant.role not in ("viewer", "member")):
            tenants = ", ".join(sorted(of_tenants[uid]))
            expected = f"viewer or member of the only tenant whose jobs run as {grant.user} ({tenants})"
            value = grant.role if grant.tenant is None else f"{grant.role} of {grant.tenant}"
            raise InputError(expected, field=where, value=value)
        grants[uid] = (*grants.get(uid, ()), grant)
    names = {uid: _name(uid) for uid in grants}
    return Peers(grants, names, None if jobs_uid is None else _name(jobs_uid))


def _uid(name: str, where: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        raise InputError("a Unix user of this machine", field=where, value=name) from None


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _nobody() -> int:
    """Return the number that the kernel shows in place of users of other user namespaces."""
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 65_534


def check_identity(config: Scenario, path: Path) -> None:
    """Raise ``InputError`` naming *path* on certificates, users and paths that cannot work."""
    folder, server = path.parent.absolute(), config.live.server
    if server.oidc is not None and find_spec("joserfc") is None:
        raise MissingExtraError("authlib", "oidc")
    try:
        if server.tls is not None:
            tls_context(server.tls, folder, "live.server.tls")
        if server.oidc is not None:
            secret_of(server.oidc.secret_variable, "live.server.oidc.secret_variable")
        if server.oidc is not None and server.oidc.ca_file is not None:
            trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), folder / server.oidc.ca_file, "live.server.oidc.ca_file")
        peers_of(config)
        socket_file = socket_path(config, folder)
        if socket_file is not None:
            _check_path(config, socket_file, folder)
    except OSError as error:
        where = "live.server.oidc.ca_file"
        raise InputError(f"a file that can be read ({error.strerror})", file=path, field=where) from None
    except InputError as error:
        raise error.within(path) from None


def identity_checks(config: Scenario, tenants: Collection[str]) -> Iterator[CheckLine]:
    """Yield a warning for each part of what identifies people that will not do what it seems to."""
    server = config.live.server
    jobs_as = peers_of(config).jobs_as
    if jobs_as is not None:
        yield warning(
            "socket", f"user {jobs_as} has no role over the socket and needs a token: all jobs run as this user",
            f"give each tenant a Unix user (live.{config.engine}.users), or use tokens there",
        )  # fmt: skip
    grants = (*(() if server.oidc is None else server.oidc.groups), *(server.socket.users if server.socket else ()))
    if missing := sorted({grant.tenant for grant in grants if grant.tenant is not None} - set(tenants)):
        yield warning("roles", f"roles in tenants that do not exist: {', '.join(missing)}", "add them under `tenants`")
    if server.oidc is not None and not server.oidc.groups:
        yield warning("oidc", "no group has a role: people can sign in, and do nothing", "add live.server.oidc.groups")


def _check_path(config: Scenario, path: Path, folder: Path) -> None:
    where = f"{_SOCKET}.path"
    if "\0" in str(path) or len(os.fsencode(path)) > _LONGEST_PATH:
        raise InputError(f"a path of at most {_LONGEST_PATH} bytes without NUL", field=where, value=path)
    seen = {"the state folder": state_of(config, folder)}
    if config.engine == "kubernetes":
        volumes = config.live.kubernetes.volumes.values()
        seen |= {f"volume {v}": Path(v.removeprefix("host:")) for v in volumes if v.startswith("host:")}
    real = path.parent.resolve()
    for what, place in seen.items():
        if place is not None and place.resolve() in (real, *real.parents):
            raise InputError(f"a path outside {what}, which jobs can reach", field=where, value=path)


def divides_by_weight(config: Scenario) -> bool:
    """Whether the policy in force takes account of the tenants' weights."""
    policy = config.policies[0]
    return policy.solver == "fair-share" or policy.fairness is not None


def shared_user(config: Scenario) -> CheckLine | None:
    """Return the warning that jobs can read what is the control plane's; ``None`` where there are none."""
    if config.engine == "simulated" or config.live.users_of(config.engine):
        return None
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    where = "" if config.engine == "local" else ", on every node that sees these files"
    finding = (
        f"all jobs run as the user of this process ({user}): a job can read and change the store and what other jobs "
        f"write{where}, and so become an operator"
    )
    advice = "restrict submission to people trusted as operators; keep the store in a database that jobs cannot reach"
    return warning("users", finding, advice)


def broken_promises(config: Scenario, weights: Mapping[str, float]) -> Iterator[CheckLine]:
    """Yield a warning for each promise to tenants of these *weights* that nothing keeps."""
    solver = config.policies[0].solver
    if len(set(weights.values())) > 1 and not divides_by_weight(config):
        shown = ", ".join(f"{name} {weight:g}" for name, weight in sorted(weights.items())[:5])
        yield warning(
            "weights", f"tenants have different weights ({shown}), and solver {solver} ignores them",
            "use solver fair-share, guarantee shares by `fairness` of the policy, or give all the same weight",
        )  # fmt: skip
    if config.live.files_gb is not None and config.engine not in ("local", "slurm"):
        finding = f"live.files_gb limits nothing: engine {config.engine} does not add up the files of jobs"
        yield warning("files", finding, "leave it out, and limit the volume that jobs write to")
    if len(weights) > 1 and (line := shared_user(config)) is not None:
        yield line
    users, where = config.live.users_of(config.engine), f"live.{config.engine}.users"
    named = {"live.tenant_limits": set(config.live.tenant_limits), where: set(users)}
    named |= {f"live.accounts.{name}.tenants": set(of.tenants) for name, of in config.live.accounts.items()}
    if config.engine == "kubernetes":
        named["live.kubernetes.jobs"] = {name for names in config.live.kubernetes.jobs.values() for name in names}
    for place, names in named.items():
        if missing := sorted(names - weights.keys()):
            finding = f"{place} names tenants that do not exist: {', '.join(missing[:5])}"
            yield warning("tenants", finding, "add them under `tenants`, or put their names right")
    if without := sorted(set(weights) - users.keys()) if users else []:
        yield warning(
            "users", f"jobs of tenants without a Unix user do not run ({', '.join(without[:5])})",
            f"name their users in {where}",
        )  # fmt: skip
    of_several = sorted({user for user in users.values() if list(users.values()).count(user) > 1})
    if of_several:
        yield warning(
            "users", f"several tenants share a Unix user ({', '.join(of_several[:5])}): their jobs are not kept apart",
            f"give each tenant its own in {where}",
        )  # fmt: skip
    unlimited = sorted(name for name in weights if config.live.limits_of(name).tardiness_weight is None)
    if len(weights) > 1 and unlimited:
        yield warning(
            "urgency", f"the tardiness weight of a job is whatever its owner writes ({', '.join(unlimited[:5])})",
            "set live.limits.tardiness_weight, tardiness_budget and due_after_s",
        )  # fmt: skip
