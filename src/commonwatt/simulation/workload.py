"""The cluster and the jobs of a scenario for one seed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from commonwatt.control.electricity import check_electricity
from commonwatt.control.fleet.layouts import check_mig
from commonwatt.control.quotas import job_quotas
from commonwatt.data.fleet import make_fleet
from commonwatt.data.series_files import FIRST_DATE_S, iso_moment
from commonwatt.data.workload import BuiltWorkload, FitTypes, demand_before, make_workload, period_begins_s
from commonwatt.forecasting import PREDICTORS
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.errors import ArgumentError, InputError
from commonwatt.model.fleet import Fleet, FractionalLaw, SharingSpec
from commonwatt.model.jobs import JobArrays, Tenant
from commonwatt.model.names import did_you_mean
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import Scenario
from commonwatt.planning.capacity import Past, check_capacity, is_model, pool_of_each
from commonwatt.simulation.run_setup import check_runs
from commonwatt.simulation.runner import Prepared

__all__ = ["check_tenants", "prepare"]


def prepare(scenario: Scenario, folder: Path, seed: int, *, fit_types: FitTypes | None = None) -> Prepared:
    """Return the jobs and the cluster of *scenario*, whose paths are relative to *folder*.

    Raises ``InputError`` on an invalid workload, and on jobs that no node can run. With *fit_types*, those of a log
    that fit no node as requested are left out: on the GPU type they ran on (``own``), or on any.
    """
    made = make_workload(scenario, folder, np.random.default_rng([seed, 0]), fit_types=fit_types)
    cluster = Cluster.of(made.nodes)
    check_tenants(scenario.tenants, made.table.tenants + _fleet_tenants(scenario, made))
    if made.workload is not None:
        scenario = scenario.model_copy(update={"workload": made.workload})
    check_runs(scenario, cluster, made.table)
    past = _past(scenario, folder, seed, cluster)
    for plan in _plans(scenario):
        check_capacity(plan, cluster, past)
    if past.models and scenario.workload is not None:
        begin_s = period_begins_s(scenario.workload, folder)
        for file in past.models:
            _check_fitted_before(folder / file, begin_s)
    fleets = _fleets(scenario, folder, cluster, made, seed)
    if fleets:
        check_electricity(scenario, cluster, made.table, fleets=fleets)
    beside = next((f" beside {fleet.sentence}" for fleet in fleets.values() if fleet.sentence), "")
    return Prepared(
        scenario, cluster, made.table, made.sentence + beside, seed, past, made.log, _treatments(made, scenario),
        made.hosts, fleets, made.speeds,
    )  # fmt: skip


def with_policies(scenario: Scenario, policies: Sequence[str]) -> Scenario:
    """Keep the policies of these names; all, if none is named. Raises ``ArgumentError``."""
    labels = [policy.label for policy in scenario.policies]
    policies = (policies,) if isinstance(policies, str) else policies
    for name in policies:
        if name not in labels:
            expected = f"a policy of the scenario ({', '.join(labels)}){did_you_mean(name, labels)}"
            raise ArgumentError(expected, field="policies", value=name)
    kept = tuple(policy for policy in scenario.policies if not policies or policy.label in policies)
    return scenario.model_copy(update={"policies": kept})


def _fleets(scenario: Scenario, folder: Path, cluster: Cluster, made: BuiltWorkload, seed: int) -> dict[str, Fleet]:
    """Return services and fractional jobs as each policy sees them; none where there are none."""
    if not scenario.has_fleet:
        return {}
    usual = scenario.sharing or SharingSpec()
    fleets = {
        policy.label: make_fleet(scenario, folder, cluster, policy.sharing or usual, made.fractions, seed)
        for policy in scenario.policies
    }
    for fleet in fleets.values():
        check_mig(fleet, cluster)
    return fleets


def _fleet_tenants(scenario: Scenario, made: BuiltWorkload) -> tuple[str, ...]:
    """Return the tenants of services and fractional jobs."""
    names = [service.tenant for service in scenario.services] + [job.tenant for job in made.fractions]
    if isinstance(scenario.fractional, FractionalLaw):
        names += scenario.fractional.tenants
    elif scenario.fractional is not None:
        names += [job.tenant for job in scenario.fractional.jobs]
    return tuple(dict.fromkeys(names))


def check_tenants(tenants: Sequence[Tenant], names: Sequence[str]) -> None:
    """Raise ``InputError`` for a tenant that is not among the *names* of the workload, or named twice."""
    named = [tenant.name for tenant in tenants]
    if twice := [name for name in named if named.count(name) > 1]:
        raise InputError("distinct tenant names", field="tenants.name", value=twice[0])
    for name in sorted(set(named) - set(names)):
        raise InputError(f"a tenant of the workload ({', '.join(names)})", field="tenants", value=name)


def _treatments(made: BuiltWorkload, scenario: Scenario) -> dict[str, int]:
    """Return how many jobs and nodes were not taken as they are, by how."""
    powerless = sum(node.count for node in made.nodes if node.idle_w == 0 and node.gpu_w == 0)
    waiting = sum(map(bool, made.table.after))
    counts = {
        "nodes of no power (idle_w and gpu_w are 0): cost nothing": powerless, **_of_accounting(scenario, made.table),
        "wait for other jobs: waiting, slowdown and tardiness count from when they may start": waiting,
    }  # fmt: skip
    return dict(made.treatments) | {how: count for how, count in counts.items() if count}


def _of_accounting(scenario: Scenario, table: JobArrays) -> dict[str, int]:
    """Return how many jobs limits of QOS and associations do not hold for, by why."""
    qos, associations = scenario.qos, scenario.associations
    limits = list(job_quotas(table, qos, associations))
    counts: dict[str, int] = {}
    if qos and not table.qos:
        counts["whose QOS is not known: without limits"] = len(table)
    elif qos:
        names, per_user = {one.name for one in qos}, {one.name for one in qos if one.limits("user").any}
        unknown = [table.qos[j] in per_user and not (table.user and table.user[j]) for j in range(len(table))]
        counts = {
            "of a QOS that is not declared: without limits": sum(name not in names for name in table.qos),
            "asked for more than a limit of their QOS: without that limit": sum(one.larger[0] for one in limits),
            "whose user is not known: without limits per user": sum(unknown),
        }
    if associations:
        accounts = {one.account for one in associations}
        has_account = np.array([name in accounts for name in table.tenants], dtype=bool)[table.tenant]
        users = any(one.user and one.any_limit for one in associations)
        users |= any(one.max_jobs_per_user is not None for one in associations)
        unknown = [bool(has_account[j]) and users and not (table.user and table.user[j]) for j in range(len(table))]
        counts |= {
            "of an account that is not declared: without its limits": int((~has_account).sum()),
            "asked for more than a limit of their association: without that limit": sum(o.larger[1] for o in limits),
            "whose user is not known: without limits of users' associations": sum(unknown),
        }
    return counts


def _check_fitted_before(path: Path, begin_s: float | None) -> None:
    """Raise ``InputError`` for a model fitted on the period; a model or log without dates cannot be checked."""
    from commonwatt.data.forecast_model import read_model

    predictor, _ = read_model(path)
    until_s = predictor.fitted_until_s
    if begin_s is None or (begin_s > FIRST_DATE_S) != (until_s > FIRST_DATE_S) or until_s - predictor.step_s < begin_s:
        return
    begin, until = (iso_moment(at) if at > FIRST_DATE_S else f"{at:.15g} s" for at in (begin_s, until_s))
    expected = f"a model fitted only on data before the period, which begins at {begin}"
    raise InputError(expected, file=path, field="capacity.forecaster", value=f"one fitted until {until}")


def _plans(scenario: Scenario) -> list[CapacitySpec]:
    plans = [policy.capacity or scenario.capacity for policy in scenario.policies]
    return [plan for plan in plans if plan is not None]


def _past(scenario: Scenario, folder: Path, seed: int, cluster: Cluster) -> Past:
    """Return the demand before the period for every plan that forecasts, of each of its pools."""
    plans = [plan for plan in _plans(scenario) if plan.forecasts]
    files = sorted({plan.forecaster for plan in plans} - PREDICTORS.keys())
    read = {file: folder / file for file in files if is_model(folder, file)}
    models = {file: hashlib.sha256(path.read_bytes()).hexdigest() for file, path in read.items()}
    past = Past({}, folder, models)
    for plan in sorted(plans, key=lambda plan: (plan.step_s, plan.history_days)):
        if scenario.workload is None or past.knows(plan, cluster):
            continue
        of = None if plan.pools is None else partial(pool_of_each, spec=plan, cluster=cluster)
        rng = np.random.default_rng([seed, 3])
        past.note(plan, cluster, demand_before(scenario.workload, folder, plan.step_s, plan.history_days, rng, of))
    return past
