"""What the numbers of a study rest on, and what each step of its waterfall takes for granted."""

from __future__ import annotations

import numpy as np

from commonwatt.data.malleable import APART, LACKING
from commonwatt.model.accounting import QOS_SCOPES
from commonwatt.model.arrays import Bools
from commonwatt.model.jobs import JobArrays
from commonwatt.model.study_file import StepName, StudyFile
from commonwatt.model.study_results import Assumption
from commonwatt.model.units import DAY_S, plural
from commonwatt.studies.run import StudyPlan

__all__ = ["STEP_ASSUMES", "STEP_SWITCH", "assumptions_of"]

STEP_SWITCH: dict[StepName, str] = {
    "thrifty-type": "workload.other_types: true, policies.gpu_type_choice: thrifty",
    "planning": "the solver of `ours`",
    "consolidation": "policies.idle_power: counted",
    "switching-off": "unused_nodes",
    "resizing": "workload.malleable: true",
    "preemption": "preemption.allowed: true",
    "price": "electricity.series, and policies.price: series",
    "one-pool": "workload.other_partitions: true",
    "power-limits": "policies.power_limits",
}
"""What a scenario of ``simulate`` says instead; in a study, ``steps`` says which are taken, and in which order."""

STEP_ASSUMES: dict[StepName, str] = {
    "thrifty-type": "Users accept another GPU type than they asked for, and a longer run on it. Speeds on other types "
    "are modelled for a drawn kind of model.",
    "planning": "Nothing of users: alone, jobs keep size and GPU type, and only order and nodes change. After the step "
    "thrifty type it chooses the type too, of those that are free.",
    "consolidation": "Nothing of users. While nodes stay on, an empty node draws as much as a used one that idles, so "
    "that this pays only together with switching off.",
    "switching-off": "Nodes can be powered off and booted by the scheduler, with the power and times that are stated.",
    "resizing": "Jobs can run on other numbers of GPUs than they requested. How their speed scales is modelled for a "
    "drawn kind of model.",
    "preemption": "Jobs take checkpoints and can be stopped and moved at a stated cost.",
    "price": "The price of electricity changes over time and is known in advance. No job is held back for it.",
    "one-pool": "Whoever has nodes of their own lets all jobs use them while they are free, by one queue.",
    "power-limits": "Jobs may run longer on GPUs with limited power: as much as Zeus measured for the model that "
    "stands for a drawn kind.",
}


DRAFTED = "Assumed when the study was drafted"


def assumptions_of(plan: StudyPlan) -> tuple[Assumption, ...]:
    """Return everything *plan* assumes, what users would notice first."""
    file = plan.file
    return (
        *_of_jobs(plan),
        *_of_nodes(file),
        Assumption(
            what="Price of electricity",
            value=_price(file),
            drawn=False, switch="electricity, --price, --pue",
        ),
        Assumption(
            what="What the cluster runs today", value=_today(file), drawn=False, switch="baseline, --priority",
        ),
        Assumption(
            what="Work that is unfinished at the end of the window",
            value="valued alike for all: the part left times the energy of the whole job as requested",
            drawn=False, switch="none; the longer a period (workload.days, --days), the less it is",
        ),
        Assumption(
            what="Decisions", value=f"at each submission and completion, and every {file.interval_s:g} s", drawn=False,
            switch="interval_s",
        ),
        Assumption(
            what="Topology, licences, reservations, exclusive nodes", value="not modelled", drawn=False, switch="none",
        ),
        Assumption(what="QOS", value=_qos(file), drawn=False, switch="qos, --qos"),
        Assumption(
            what="Accounts and users", value=_associations(file), drawn=False, switch="associations, --associations"
        ),
        *(Assumption(what=DRAFTED, value=text, drawn=False, switch="nodes, workload") for text in file.assumed),
    )  # fmt: skip


def _of_jobs(plan: StudyPlan) -> list[Assumption]:
    file = plan.file
    due = "none"
    if file.due_dates != "none":
        due = DUE_DATES[file.due_dates.rule]
    return [
        Assumption(what="Size of jobs", value="as requested", drawn=False, switch="step resizing"),
        Assumption(
            what="GPU type of jobs",
            value=_gpu_types(plan),
            drawn=False, switch="step thrifty-type",
        ),
        Assumption(
            what="Nodes of jobs", value=_partitions(plan), drawn=False, switch="nodes.partitions, step one-pool",
        ),
        Assumption(
            what="CPUs and memory of nodes", value=_cpus(plan), drawn=False, switch="nodes.cpus, nodes.memory_gib",
        ),
        Assumption(
            what="Jobs that failed, were cancelled or ended early",
            value="run as long as the log says, and hold their GPUs until then", drawn=False,
            switch="none; leave them out of the log",
        ),
        Assumption(what="Due dates", value=due, drawn=due.startswith("drawn"), switch="due_dates"),
        Assumption(
            what="What schedulers know of run times", value=KNOWLEDGE[plan.knowledge], drawn=False,
            switch="knowledge, --knowledge",
        ),
        Assumption(
            what="What they know of speeds on other GPU types and counts", value=_speed_error(file), drawn=False,
            switch="speed_error",
        ),
        Assumption(
            what="Running jobs", value=_stops(file), drawn=False, switch="step preemption; qos.preempts, --qos",
        ),
        Assumption(
            what="A stop, of whatever cause",
            value=_stop_costs(file),
            drawn=False, switch="workload.epoch_s, preemption.restart_s",
        ),
        Assumption(
            what="GPUs of a job, from the step resizing on", value=f"at most {file.largest_growth:g} times its request",
            drawn=False, switch="largest_growth",
        ),
        Assumption(
            what=f"A job under {file.ours.label}",
            value="starts as soon as it may" if file.ours.work_conserving else "may wait for less energy",
            drawn=False, switch="ours.work_conserving",
        ),
        Assumption(
            what="Kind of model of each job: its power, its speed on other GPU types and counts",
            value=_kinds(plan), drawn=len(_kinds_of(plan)) > 1, switch="gpu_types.TYPE.profile, workload.profiles",
        ),
        Assumption(
            what="Where these speeds and powers are from", value=plan.first().speeds, drawn=False,
            switch="gpu_types, workload.profiles, COMMONWATT_DATA (the folder of measured tables)",
        ),
    ]  # fmt: skip


def _stop_costs(file: StudyFile) -> str:
    lost = f"the work since the last checkpoint, one every {file.workload.epoch_s:g} s, and "
    return f"costs {lost if file.preemption.lose_work else ''}{file.preemption.restart_s:g} s for the restart"


def _kinds_of(plan: StudyPlan) -> list[str]:
    return list(dict.fromkeys(kind for run in plan.runs.values() for kind in plan.prepared[run].table.kinds))


def _kinds(plan: StudyPlan) -> str:
    kinds = _kinds_of(plan)
    if len(kinds) == 1:
        return f"{kinds[0]}, of all jobs"
    return f"one of {len(kinds)} that run on as many GPUs as the job requested, each equally likely"


def _speed_error(file: StudyFile) -> str:
    if not file.speed_error:
        return "exactly"
    return f"with an error: the logarithm of true over believed speed has a standard deviation of {file.speed_error:g}"


def _partitions(plan: StudyPlan) -> str:
    in_force = any(plan.prepared[plan.runs[0, week, 0]].table.partition for week in range(len(plan.starts)))
    return "those of the partition the log names" if in_force else "any: no partitions are known"


def _cpus(plan: StudyPlan) -> str:
    limited = sum(node.count for node in plan.file.nodes if node.cpus or node.memory_gib)
    tables = [plan.prepared[plan.runs[0, week, 0]].table for week in range(len(plan.starts))]
    asking = sum(int(_asks(table).sum()) for table in tables)
    if not limited or not asking:
        lacks = "nodes have none declared" if not limited else "the log says of no job what it had"
        return f"not modelled, as {lacks}: jobs share the GPUs of a node freely"
    return (
        f"every scheduler but as logged gives jobs no more than a node has; known of {plural(limited, 'node')} and "
        f"{plural(asking, 'job')}, in proportion to GPUs where jobs are resized"
    )


def _asks(table: JobArrays) -> Bools:
    """Jobs that need CPUs or memory, [J]."""
    asks = np.zeros(len(table), dtype=bool)
    for column in (table.cpus_per_gpu, table.memory_gib_per_gpu):
        asks |= column > 0 if len(column) else False
    return asks


def _gpu_types(plan: StudyPlan) -> str:
    if not plan.names_types:
        return "any, fastest first: the log names none"
    periods = [plan.prepared[plan.runs[0, week, 0]] for week in range(len(plan.starts))]
    counts = [sum(period.treatments.get(how, 0) for period in periods) for how in (LACKING, APART)]
    lacks = ("that the cluster lacks: any type it has", "that no node of their partition has: any type there is")
    notes = [f"{plural(count, 'job')} ran on a type {what}" for count, what in zip(counts, lacks, strict=True) if count]
    if notes:
        return f"the one the log names; {'; '.join(notes)}, with the logged run time converted to its speed"
    return "the one the log names"


DUE_DATES = {
    "drawn": "drawn around the logged run times",
    "time-limit": "by the declared time limit",
    "qos": "by the QOS of a job",
}

KNOWLEDGE = {
    "oracle": "everything, exactly: the best case",
    "user-limit": "the declared time limits",
    "predicted": "predictions from the log's past",
    "none": "nothing",
}


def _of_nodes(file: StudyFile) -> list[Assumption]:
    today, then = file.unused_nodes, file.switched_off
    return [
        Assumption(
            what="Unused nodes",
            value="stay on" if today.state is None else f"{today.state} after {today.after_s:g} s",
            drawn=False, switch="unused_nodes, step switching-off",
        ),
        Assumption(
            what="Unused nodes from the step switching-off on",
            value="stay on" if then.state is None else f"{then.state} after {then.after_s:g} s",
            drawn=False, switch="switched_off, nodes.states",
        ),
    ]  # fmt: skip


def _price(file: StudyFile) -> str:
    bill = file.electricity
    price = "changes over time" if bill.series else f"{bill.price_per_kwh:g} {bill.currency}/kWh"
    return f"{price}, PUE {bill.pue:g}"


def _today(file: StudyFile) -> str:
    spec = file.baseline
    if spec.solver == "easy":
        return f"EASY backfill in order of arrival, {spec.backfill_depth} jobs deep"
    if spec.solver != "fair-share":
        return spec.solver
    weights = (
        f"fair share {spec.fair_share_weight:g} with a half-life of {spec.half_life_s / DAY_S:g} days, age 1 up to "
        f"{spec.max_age_s / DAY_S:g} days, size {spec.size_weight:g}, QOS {spec.qos_weight:g}"
    )
    return f"multifactor priority ({weights}) and backfill {spec.backfill_depth} jobs deep"


def _qos(file: StudyFile) -> str:
    if not file.qos:
        return "none: no limits of running jobs or GPUs, no priority"
    limited = sum(qos.limits(scope).any for qos in file.qos for scope in QOS_SCOPES)
    weight = file.baseline.qos_weight if file.baseline.solver == "fair-share" else 0.0
    counts = f"their priority counts for the scheduler of today ({weight:g})" if weight else "no priority"
    return f"{len(file.qos)}, with {plural(limited, 'limit')} that every scheduler keeps; {counts}"


def _stops(file: StudyFile) -> str:
    preempted = {name for qos in file.qos for name in qos.preempts}
    names = [qos.name for qos in file.qos if qos.name in preempted and qos.preempt_mode != "off"]
    if not names:
        return "are never stopped or moved"
    return (
        f"of QOS {', '.join(names)} wait again, and lose their work since the last checkpoint, where a job of a QOS "
        "that may preempt theirs has no other room; no others are stopped or moved"
    )


def _associations(file: StudyFile) -> str:
    if not file.associations:
        return "of equal weight, without limits, but for those of their QOS"
    accounts = sum(not one.user for one in file.associations)
    limited, users = sum(one.any_limit for one in file.associations), len(file.associations) - accounts
    return (
        f"{plural(accounts, 'account')} and {plural(users, 'user')} in them, {limited} with limits that "
        "every scheduler keeps; accounts weigh by their shares in fair share"
    )
