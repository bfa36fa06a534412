"""What a configuration promises its tenants and does not keep: said in plain lines when it starts, and by ``check``."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping

from commonwatt.controlplane.preflight_engines import warning
from commonwatt.model.admin_results import CheckLine
from commonwatt.model.scenario import Scenario

__all__ = ["broken_promises", "divides_by_weight", "shared_user"]


def divides_by_weight(config: Scenario) -> bool:
    """Whether the policy in force takes account of the tenants' weights."""
    policy = config.policies[0]
    return policy.solver == "fair-share" or policy.fairness is not None


def shared_user(config: Scenario) -> CheckLine | None:
    """Return the warning that jobs can read what is the control plane's; ``None`` where there are none."""
    if config.engine == "simulated" or (config.engine == "local" and config.live.local.users):
        return None
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    where = "" if config.engine == "local" else ", on every node that sees these files"
    found = (
        f"all jobs run as the user of this process ({user}): a job can read and change the store and what other jobs "
        f"write{where}, and so become an operator"
    )
    advice = "let only people submit who may be operators; keep the store in a database that jobs cannot reach"
    return warning("users", found, advice)


def broken_promises(config: Scenario, weights: Mapping[str, float]) -> Iterator[CheckLine]:
    """Yield a warning for each promise to tenants of these *weights* that nothing keeps."""
    solver = config.policies[0].solver
    if len(set(weights.values())) > 1 and not divides_by_weight(config):
        shown = ", ".join(f"{name} {weight:g}" for name, weight in sorted(weights.items())[:5])
        yield warning(
            "weights", f"tenants have different weights ({shown}), and solver {solver} ignores them",
            "use solver fair-share, guarantee shares by `fairness` of the policy, or give all the same weight",
        )  # fmt: skip
    if len(weights) > 1 and (line := shared_user(config)) is not None:
        yield line
    users = config.live.local.users if config.engine == "local" else {}
    if without := sorted(set(weights) - users.keys()) if users else []:
        yield warning(
            "users", f"jobs of tenants without a Unix user do not run ({', '.join(without[:5])})",
            "name their users in live.local.users",
        )  # fmt: skip
    of_several = sorted({user for user in users.values() if list(users.values()).count(user) > 1})
    if of_several:
        yield warning(
            "users", f"several tenants share a Unix user ({', '.join(of_several[:5])}): their jobs are not kept apart",
            "give each tenant its own in live.local.users",
        )  # fmt: skip
    unlimited = sorted(name for name in weights if config.live.limits_of(name).tardiness_weight is None)
    if len(weights) > 1 and unlimited:
        yield warning(
            "urgency", f"the tardiness weight of a job is whatever its owner writes ({', '.join(unlimited[:5])})",
            "set live.limits.tardiness_weight, tardiness_budget and due_after_s",
        )  # fmt: skip
