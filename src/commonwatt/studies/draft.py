"""A study file from what an operator has: a log and what ``scontrol show node`` prints, or a scenario."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from commonwatt.data.catalog import guess_format
from commonwatt.data.check import LOG_NAMES, check, locate_input
from commonwatt.data.files import load_yaml, parse_yaml, validate
from commonwatt.data.inventory import read_inventory
from commonwatt.data.log import JobLog
from commonwatt.data.readers import READERS, read_log
from commonwatt.data.sacctmgr import read_associations, read_config, read_qos, spelt
from commonwatt.data.scenario_draft import HOST_W, IDLE_PART, drafted_nodes
from commonwatt.data.slurm_config import SlurmPreemption, configured, preemption_of
from commonwatt.data.text import read_text
from commonwatt.engines.slurm.parsing import host_names
from commonwatt.model.admin_results import InitNode
from commonwatt.model.electricity import Electricity
from commonwatt.model.errors import ArgumentError, FieldError, InputError
from commonwatt.model.names import check_count, check_number
from commonwatt.model.nodes import NodeSpec, PowerState
from commonwatt.model.scenario import LogWorkload, Scenario, WeekWorkload
from commonwatt.model.study_file import STEPS, StepName, StudyFile, left_to_study, refuse_set
from commonwatt.model.units import DAY_S, WEEK_S, plural

__all__ = ["DraftOptions", "apply_options", "load_study", "with_accounting"]

MOST_WEEKS = 4
"""Weeks of a long log that are studied if nothing is said."""

OFF = PowerState(name="off", power_w=15.0, enter_s=60.0, wake_s=300.0)
"""Assumed of a node whose power states are not declared: a service processor, and five minutes to boot."""


@dataclass(frozen=True)
class DraftOptions:
    """What a user says beside the files; ``None`` leaves it to the file, or to what suits the log."""

    nodes: Path | None = None
    qos: Path | None = None
    associations: Path | None = None
    priority: Path | None = None
    source: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    begin: str | None = None
    days: float | None = None
    weeks: int | None = None
    seeds: int | None = None
    knowledge: str | None = None
    gpu_type: str | None = None
    price_per_kwh: float | None = None
    pue: float | None = None
    currency: str | None = None

    def __post_init__(self) -> None:
        check_count("weeks", self.weeks)
        check_count("seeds", self.seeds)
        check_number("days", self.days, above=True)
        check_number("price_per_kwh", self.price_per_kwh)
        check_number("pue", self.pue, 1)


def load_study(given: str | Path, options: DraftOptions) -> tuple[StudyFile, Path]:
    """Return the study that *given* is, or is drafted for, and the folder its paths are relative to.

    Parameters
    ----------
    given
        A log of any format that is read, the name of a public one, a study file or a scenario.

    Raises
    ------
    InputError
        For whatever is wrong in one of the files, and for a log without ``options.nodes``.
    """
    path, source = locate_input(str(given), "log", LOG_NAMES)
    document = None if source or options.source else _document(path)
    if document is None:
        file = _of_log(path, source or options.source, options)
        return apply_options(file, replace(options, nodes=None, qos=None, associations=None, priority=None)), Path()
    if "workload" in document and "nodes" not in document:
        raise InputError("at least one node", file=path, field="nodes", value="none")
    if _is_scenario(document):
        return apply_options(_of_scenario(load_yaml(path, Scenario), path), options), path.parent
    study = load_yaml(path, StudyFile)
    try:
        refuse_set(document)
    except FieldError as error:
        raise InputError(error.expected, file=path, field=error.field, value=error.value) from None
    return apply_options(study, options), path.parent


def _document(path: Path) -> dict[str, Any] | None:
    """Return the content of *path* if it is a study file or a scenario; ``None`` for anything else, such as a log."""
    if path.suffix.lower() not in (".yaml", ".yml", ".json"):
        return None
    text = read_text(path)
    if path.suffix.lower() == ".json" and '"workload"' not in text:
        return None
    try:
        raw = parse_yaml(text)
    except Exception:
        return {}
    return raw if isinstance(raw, dict) else {}


def _is_scenario(document: Mapping[str, Any]) -> bool:
    return any(key in document for key in ("policies", "engine", "live", "capacity", "runtime_error", "outages"))


def _of_scenario(scenario: Scenario, path: Path) -> StudyFile:
    if not isinstance(scenario.workload, LogWorkload | WeekWorkload):
        value = "none" if scenario.workload is None else scenario.workload.source
        raise InputError("a workload from a log", file=path, field="workload.source", value=value)
    baselines = [spec for spec in scenario.policies if spec.solver in ("fair-share", "easy")]
    plain = {"unused_nodes": None, "capacity": None} | left_to_study(scenario.policies[0], "ours")
    baseline = {"baseline": baselines[0].model_copy(update=plain | {"name": "as today"})} if baselines else {}
    ours = scenario.policies[0]
    fields = {
        name: getattr(scenario, name)
        for name in (
            "name",
            "workload",
            "nodes",
            "gpu_types",
            "tenants",
            "qos",
            "associations",
            "electricity",
            "interval_s",
            "speed_error",
        )
    }
    for name, part in (("workload", scenario.workload), ("preemption", scenario.preemption)):
        fields[name] = part.model_copy(update=left_to_study(part, name))
    fields["largest_growth"] = scenario.workload.largest_growth
    if ours.solver not in ("fair-share", "easy"):
        fields["ours"] = ours.model_copy(update=plain | {"name": ours.label, "work_conserving": True})
    return validate(StudyFile(**fields, **baseline).model_dump(), StudyFile)


def _of_log(path: Path, source: str | None, options: DraftOptions) -> StudyFile:
    try:
        checked = check(path, source, options.columns)
    except InputError:
        if _lists_nodes(path):
            expected = "a job log as LOG, and the nodes with --nodes"
            raise InputError(expected, file=path, field="LOG", value="a list of nodes") from None
        raise
    log = checked.log
    if log is None:
        raise InputError("a job log", file=path, value=checked.result.format)
    if options.nodes is None:
        raise ArgumentError("the cluster: what `scontrol show node` printed, or a scenario's nodes", field="nodes")
    nodes, assumed = _nodes(options.nodes)
    begin, days, weeks, empty = _period(log, options)
    ran_on, notes = _logged_type(log, nodes, options)
    workload = LogWorkload(
        source=checked.result.format, path=str(path.resolve()), columns=dict(options.columns), begin=begin, days=days,
        logged_gpu_type=ran_on,
    )  # fmt: skip
    apart = len({node.partitions for node in nodes}) > 1 and bool(log.partition)
    steps: tuple[StepName, ...] = (*STEPS, "one-pool") if apart else STEPS
    file = StudyFile(
        name=path.stem, workload=workload, nodes=nodes, weeks=weeks, steps=steps, assumed=(*assumed, *notes, *empty)
    )  # fmt: skip
    return with_accounting(file, options)


def with_accounting(file: StudyFile, options: DraftOptions) -> StudyFile:
    """Return *file* with the QOS, the associations and the priority of the files that *options* name, if any.

    Where priorities of QOS differ and nothing says their weight, they count as much as age. Raises ``InputError``.
    """
    types, changed, notes = [node.gpu_type for node in file.nodes], dict[str, Any](), list[str]()
    unknown: tuple[str, ...] = ()
    preempt = SlurmPreemption(by_qos=True, mode="cluster", exempt_s=0.0)
    baseline = file.baseline
    if options.priority is not None:
        config = read_config(options.priority)
        baseline, config_notes = configured(baseline, config, options.priority)
        preempt = preemption_of(config, options.priority)
        changed["baseline"], notes = baseline, [*config_notes, *preempt.notes]
        if not preempt.by_qos:
            changed["qos"] = tuple(one.model_copy(update={"preempts": ()}) for one in file.qos)
    if options.qos is not None:
        qos = read_qos(options.qos, mode=preempt.mode, exempt_s=preempt.exempt_s)
        specs, unknown = spelt(qos.qos, types)
        if not preempt.by_qos and any(one.preempts for one in specs):
            notes.append("QOS preempt no jobs: PreemptType is not preempt/qos")
            specs = tuple(one.model_copy(update={"preempts": ()}) for one in specs)
        else:
            notes += qos.notes
        changed["qos"] = specs
        differ = len({one.priority for one in specs}) > 1
        if differ and options.priority is None and baseline.solver == "fair-share" and not baseline.qos_weight:
            changed["baseline"] = baseline.model_copy(update={"qos_weight": 1.0})
            notes.append("the priority of a QOS counts as much as age (baseline.qos_weight: 1): see PriorityWeightQOS")
    if options.associations is not None:
        table = read_associations(options.associations)
        changed["associations"], others = spelt(table.associations, types)
        unknown, notes = (*unknown, *others), [*notes, *table.notes]
    if unknown:
        notes.append(f"no node has these GPU types, whose limits are left out: {', '.join(dict.fromkeys(unknown))}")
    return file.model_copy(update={**changed, "assumed": (*file.assumed, *notes)}) if changed else file


def _period(log: JobLog, options: DraftOptions) -> tuple[str | None, float, int, tuple[str, ...]]:
    """Return begin, days and number of periods, as requested or the last whole weeks of the log; and what was left out.

    Of these weeks, those before a week without submissions are left out.
    """
    last = log.span_s[1]
    days = options.days or min(7.0, round(max(last - log.whole_from_s, 3600.0) / DAY_S + 0.005, 2))
    if options.begin is not None:
        return options.begin, days, options.weeks or 1, ()
    fit = max(1, int((last - log.whole_from_s) // (days * DAY_S)))
    weeks = options.weeks or min(MOST_WEEKS, fit)
    if last - log.whole_from_s < WEEK_S and weeks == 1:
        return None, days, 1, ()
    whole = weeks
    while options.weeks is None and weeks > 1 and _any_empty(log, last - weeks * days * DAY_S, days, weeks):
        weeks -= 1
    begin_s = max(log.whole_from_s, last - weeks * days * DAY_S)
    begin = f"{begin_s:.0f}" if log.origin is None else log.moment(begin_s)
    left = f"{plural(whole - weeks, 'period')} left out: nothing was submitted in one of them, or a later one"
    return begin, days, weeks, (left,) if weeks < whole else ()


def _any_empty(log: JobLog, begin_s: float, days: float, weeks: int) -> bool:
    at = np.searchsorted(log.submit_s, begin_s + np.arange(weeks + 1) * days * DAY_S)
    return bool((np.diff(at) == 0).any())


def _logged_type(log: JobLog, nodes: tuple[NodeSpec, ...], options: DraftOptions) -> tuple[str, tuple[str, ...]]:
    """Return the GPU type of jobs whose log names none, and what was assumed for that."""
    if options.gpu_type is not None:
        return options.gpu_type, ()
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.gpu_type] = counts.get(node.gpu_type, 0) + node.count * node.gpus
    most = max(counts, key=lambda name: counts[name])
    if all(log.gpu_type) or len(counts) == 1:
        return most, ()
    unnamed = sum(not name for name in log.gpu_type)
    many = f"{unnamed} of {plural(len(log), 'job')}"
    return most, (f"{many} name no GPU type: their run times are taken as those on {most}",)


def _nodes(path: Path) -> tuple[tuple[NodeSpec, ...], tuple[str, ...]]:
    """Return the nodes *path* declares or lists, and what was assumed of them."""
    text = read_text(path)
    if path.suffix.lower() in (".yaml", ".yml"):
        nodes = load_yaml(path, Scenario).nodes
        if not nodes:
            raise InputError("at least one node", file=path, field="nodes")
        return nodes, ()
    if kind := _log_format(path):
        expected = "what `scontrol show node` printed, or a scenario; the log is LOG"
        raise ArgumentError(expected, file=path, field="nodes", value=f"a job log ({kind})")
    inventory = read_inventory(text, host_names, file=path, host=platform.node() or "node")
    names = [node.name for node in inventory.nodes]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ArgumentError("each node once", file=path, field="nodes", value=f"{twice[0]} twice")
    drafts = drafted_nodes(inventory.nodes)
    specs = [NodeSpec(**node.model_dump(exclude={"power_source"}), **_states(node)) for node in drafts]
    limits = {n.gpu_type: n.power_source or f"{n.gpu_w / (1 - IDLE_PART):g} W, a placeholder" for n in drafts}
    power = "; ".join(f"{kind}: {limit}" for kind, limit in limits.items())
    drawn = f"{HOST_W:g} W for the host and {100 * IDLE_PART:g}% of each GPU's limit when idle, the rest of it in use"
    assumed = [
        f"a node draws {drawn} ({power})",
        f"a node that is off draws {OFF.power_w:g} W, takes {OFF.enter_s:g} s to go off and {OFF.wake_s:g} s to boot",
        *inventory.notes,
    ]
    if inventory.without_gpus:
        left_out = plural(inventory.without_gpus, "node")
        assumed.append(f"left out, as without GPUs: {left_out}")
    return tuple(specs), tuple(assumed)


def _lists_nodes(path: Path) -> bool:
    try:
        text = read_text(path)
        return "JobID" not in text.split("\n", 1)[0] and bool(read_inventory(text, host_names, file=path).nodes)
    except InputError:
        return False


def _log_format(path: Path) -> str | None:
    """Return the format of a file that can only be a job log; ``None`` of any other."""
    try:
        kind = guess_format(path)
        return kind if kind in READERS and len(read_log(kind, path)) else None
    except InputError:
        return None


def _states(node: InitNode) -> dict[str, Any]:
    """Return the low-power states of *node*: a part of a node with several GPU types has none."""
    return {} if node.host is not None else {"states": (OFF,)}


def apply_options(file: StudyFile, options: DraftOptions) -> StudyFile:
    """Return *file* with *options* in place of what it says; raises ``InputError``."""
    if options.nodes is not None:
        nodes, assumed = _nodes(options.nodes)
        file = file.model_copy(update={"nodes": nodes, "assumed": assumed})
    file = with_accounting(file, options)
    changed: dict[str, Any] = {
        name: value for name in ("weeks", "seeds", "knowledge") if (value := getattr(options, name)) is not None
    }
    period = {name: value for name in ("begin", "days") if (value := getattr(options, name)) is not None}
    if period and isinstance(file.workload, LogWorkload):
        changed["workload"] = file.workload.model_copy(update=period)
    bill = {
        name: value for name in ("price_per_kwh", "pue", "currency") if (value := getattr(options, name)) is not None
    }
    if bill:
        changed["electricity"] = Electricity.model_validate(file.electricity.model_dump() | bill)
    return validate(file.model_dump() | changed, StudyFile) if changed else file
