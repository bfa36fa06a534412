"""Checks of an engine for ``commonwatt check``: GPUs, state folder, Slurm, Kubernetes; nothing is changed."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from commonwatt.controlplane.engines import slots_of
from commonwatt.controlplane.state import misplaced
from commonwatt.engines.kubernetes.api import KubernetesApi, RefusedByServerError, path_of
from commonwatt.engines.kubernetes.connect import (
    ALONE,
    GANG_RIGHTS,
    POWER_RIGHTS,
    RIGHTS,
    USER_RIGHTS,
    api_of,
    denied_rights,
    dry_run,
    mismatches,
    nodes_in,
    settings_of,
)
from commonwatt.engines.kubernetes.objects import Node
from commonwatt.engines.kubernetes.power import autoscaler
from commonwatt.engines.kubernetes.user_gang import KINDS, JobKind
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.connect import differences, discover, slurm_of
from commonwatt.engines.slurm.node_control import node_draw
from commonwatt.engines.slurm.parsing import SlurmNode, host_names
from commonwatt.engines.state_folder import used_by_another
from commonwatt.model.admin_results import CheckLine
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.live import LiveSpec, NodePowerSpec
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import Scenario
from commonwatt.model.units import DAY_S, plural
from commonwatt.store.controller_store import ControllerStore
from commonwatt.store.database import address

__all__ = [
    "GpusHere",
    "engine_checks",
    "failed",
    "fine",
    "gpus_here",
    "kubernetes_checks",
    "power_saving",
    "running_jobs_elsewhere",
    "slurm_checks",
    "state_folder",
    "warning",
    "writable",
]


def fine(what: str, finding: str, advice: str | None = None) -> CheckLine:
    """A check that passed."""
    return CheckLine(what=what, verdict="ok", found=finding, advice=advice)


def warning(what: str, finding: str, advice: str) -> CheckLine:
    """A check with a problem that does not keep a controller from running."""
    return CheckLine(what=what, verdict="warning", found=finding, advice=advice)


def failed(what: str, finding: str, advice: str) -> CheckLine:
    """A check with a problem that keeps a controller from running."""
    return CheckLine(what=what, verdict="failed", found=finding, advice=advice)


def writable(what: str, folder: Path) -> CheckLine:
    """Whether files can be made in *folder*, or it can be made itself."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    if not there.is_dir():
        return failed(what, f"{there} is not a folder", f"move it away, or name another folder than {folder}")
    if not os.access(there, os.W_OK | os.X_OK):
        return failed(what, f"no permission to write in {there}", f"give the user of this process {folder}")
    return fine(what, f"{folder} can be written" if there == folder else f"{folder} will be made")


@dataclass(frozen=True)
class GpusHere:
    """GPUs of this machine. ``names`` is ``None`` if there is no driver to ask; ``trouble`` says why."""

    names: tuple[str, ...] | None
    metered: tuple[bool, ...] = ()  # whether each has an energy counter
    trouble: str = ""


def gpus_here() -> GpusHere:
    """Ask NVML for the GPUs of this machine."""
    try:
        import pynvml
    except ImportError:
        return GpusHere(None, trouble="nvidia-ml-py is not installed (pip install 'commonwatt[gpu]')")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return GpusHere(None, trouble=f"NVML says: {error}")
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
        return GpusHere(
            tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names),
            tuple(_metered(pynvml, handle) for handle in handles),
        )
    except pynvml.NVMLError as error:
        return GpusHere(None, trouble=f"NVML says: {error}")
    finally:
        pynvml.nvmlShutdown()


def _metered(nvml: object, handle: object) -> bool:
    try:
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)  # type: ignore[attr-defined]
    except nvml.NVMLError:  # type: ignore[attr-defined]
        return False
    return True


def state_folder(config: Scenario, folder: Path, state: Path) -> CheckLine:
    """Whether *state* can be written, and no controller of another store uses it; *folder* is that of *config*."""
    what = "state folder"
    store = address(config.live.store, folder).render_as_string(hide_password=True)
    if (other := used_by_another(state, store)) is not None:
        finding = f"{other.rstrip(',')} uses {state}"
        return failed(what, finding, f"give each store its own folder: live.{config.engine}.state")
    return writable(what, state)


def running_jobs_elsewhere(config: Scenario, file: Path, store: ControllerStore) -> Iterator[CheckLine]:
    """Check that no jobs of the store run from another state folder than that of *config*, read from *file*."""
    try:
        error = misplaced(config, file, store)
    except EngineError as trouble:
        yield failed("running jobs", str(trouble), "give the user of this process the folder")
        return
    if error is not None:
        advice = f"put back {error.field} until these jobs have ended"
        yield failed("running jobs", str(error), advice)


_WHAT = "power saving"
_NEVER_S = 30 * DAY_S
"""An idle time after which any node may be put to sleep."""
_SETTING = re.compile(r"(\w+)\s*=\s?(.*)")
_NONE = {"", "(null)", "NONE"}


def power_saving(slurm: Slurm, cluster: Cluster, *, planned: bool = False) -> Iterator[CheckLine]:
    """Check the power saving of a Slurm that is to put nodes to sleep for us, and what it would do by itself.

    If there is a capacity plan (*planned*), power saving has to work.
    """
    try:
        said = slurm.run("scontrol", "show", "config")
        settings = {m[1]: m[2] for line in said.splitlines() if (m := _SETTING.match(line.strip()))}
        kept = _kept_on(slurm, settings.get("SuspendExcNodes", ""), settings.get("SuspendExcParts", ""))
    except (EngineError, ValueError) as error:
        yield warning(_WHAT, str(error), "see whether `scontrol show config` works for this user")
        return
    off = [f"{name} is not set" for name in ("SuspendProgram", "ResumeProgram") if settings.get(name, "") in _NONE]
    surely = bool(off)  # a partition may have a time of its own, but no program
    idle = settings.get("SuspendTime", "").partition(" ")[0]
    if not idle.isdigit():
        off.append(f"SuspendTime is {idle or 'not set'}")
    if off:
        advice = "set SuspendProgram, ResumeProgram and SuspendTime=31536000 in slurm.conf, and restart slurmctld"
        finding = f"off in Slurm, which will refuse to put nodes to sleep: {', '.join(off)}"
        yield (failed if planned and surely else warning)(_WHAT, finding, advice)
        return
    left = [name for name in cluster.names if name not in kept]
    if left and int(idle) < _NEVER_S:
        named = f"{', '.join(left[:5])}{f' and {len(left) - 5} more' if len(left) > 5 else ''}"
        finding = f"Slurm puts nodes to sleep that were idle for {idle} s, even those a plan keeps on: {named}"
        yield warning(_WHAT, finding, "set SuspendTime=31536000 in slurm.conf, or list these nodes in SuspendExcNodes")
        return
    yield fine(_WHAT, "set up in Slurm, which leaves these nodes on")


def _kept_on(slurm: Slurm, nodes: str, partitions: str) -> set[str]:
    """Return the nodes Slurm never puts to sleep by itself; lists with a count are left out: they keep only some on."""
    names: set[str] = set()
    if nodes not in _NONE:
        lists = re.findall(r"(?:[^,\[\]:]|\[[^\]]*\])+(?::\d+)?", nodes)
        names |= {name for text in lists if ":" not in text for name in host_names(text)}
    if partitions not in _NONE:
        ask = ("--noheader", "--all", "--Node", f"--partition={partitions}", "--format=%N")
        names |= set(slurm.run("sinfo", *ask).split())
    return names


_PROGRAMS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue")


def slurm_checks(config: Scenario, cluster: Cluster, folder: Path) -> Iterator[CheckLine]:
    """Check Slurm's commands, its nodes against the declared ones, and the folder all nodes must see."""
    spec = config.live.slurm
    planned = bool(config.capacity or config.policies[0].capacity)
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        yield failed("engine", f"not installed here: {', '.join(missing)}", "install Slurm's client commands")
    elif spec.conf is not None and not Path(spec.conf).is_file():
        yield failed("engine", f"live.slurm.conf is no file: {spec.conf}", "name the slurm.conf of this machine")
    else:
        yield from _asked(slurm_of(spec), cluster, power=spec.power, planned=planned)
        if spec.meter == "slurm":
            yield _measured(slurm_of(spec), cluster)
    line = state_folder(config, folder, folder / spec.state)
    if line.verdict == "ok":
        line = fine(line.what, f"{line.found}; all nodes must see it under this name, which is not checked here")
    yield line
    if spec.users and line.verdict == "ok":
        yield _given_away(folder / spec.state, next(iter(spec.users.values())))
    if spec.meter == "declared":
        yield fine("power readings", "computed from the declared power of nodes and GPUs, not measured")
    elif spec.meter == "none":
        yield warning("power readings", "none: energy and cost will be unknown", "set live.slurm.meter to declared")
    if planned and not spec.power:
        advice = "set live.slurm.power, if Slurm's power saving is set up, or take `capacity` out"
        yield failed("power saving", "a capacity plan is configured, but nodes may not be powered down", advice)


def _measured(slurm: Slurm, cluster: Cluster) -> CheckLine:
    """Check that Slurm measures what nodes draw; those that are off now are not asked for it."""
    what = "power readings"
    try:
        drawn = node_draw(slurm)
    except EngineError as error:
        return failed(what, str(error), "see whether `scontrol show node` works for this user")
    on = [(name, drawn[name]) for name in cluster.names if name in drawn and not drawn[name].off]
    without = [name for name, one in on if one.watts is None]
    if not on:
        advice = "run it again while nodes are on"
        return warning(what, "no node is on: whether Slurm measures what they draw is not known", advice)
    if len(without) == len(on):
        advice = "set AcctGatherEnergyType and AcctGatherNodeFreq in slurm.conf, or live.slurm.meter to declared"
        return failed(what, "Slurm measures no node (CurrentWatts of `scontrol show node`)", advice)
    if without:
        found = f"{len(without)} of {len(on)} nodes are not measured by Slurm: {_shortened(without)}"
        return warning(what, found, "what they draw is taken as declared, with the GPUs that jobs have")
    return fine(what, f"Slurm measures {plural(len(on), 'node')} that {'is' if len(on) == 1 else 'are'} on")


def _given_away(state: Path, user: str) -> CheckLine:
    """Check that files in the state folder can be given to other users: runs are theirs."""
    there = next(path for path in (state, *state.absolute().parents) if path.is_dir())
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            os.fchown(file.fileno(), pwd.getpwnam(user).pw_uid, -1)
    except OSError as error:
        finding = f"files in {there} cannot be given to user {user}: {error.strerror}"
        return failed("users", finding, "let root give files away there (NFS: no_root_squash for this machine)")
    return fine("users", "jobs are their owners' in Slurm and on the nodes, which must know these users, too")


def _asked(slurm: Slurm, cluster: Cluster, *, power: bool, planned: bool) -> Iterator[CheckLine]:
    try:
        said = " ".join(slurm.run("sinfo", "--version").split())
        jobs, nodes, real_nodes = slurm.jobs(), slurm.nodes(), discover(slurm)
    except EngineDownError as error:
        yield failed("engine", str(error), "start slurmctld; `scontrol ping` says whether it answers")
        return
    except EngineError as error:
        yield failed("engine", str(error), "see whether sinfo and squeue work for this user, and live.slurm.conf")
        return
    yield fine(
        "engine",
        f"{said} answers: {plural(len(nodes), 'node')}, {plural(len(jobs), 'job')}; external jobs are left alone",
    )
    differ = differences(cluster, real_nodes)
    spare = [one.sentence for one in differ if not one.declared]
    wrong = [one.sentence for one in differ if one.declared]
    if wrong:
        yield failed("nodes", _shortened(wrong), "declare nodes, Gres and features as `scontrol show node` has them")
    elif spare:
        yield warning("nodes", _shortened(spare), "declare them if jobs may run there")
    else:
        yield fine("nodes", f"{len(cluster)} declared, as Slurm has them")
    yield from _states(cluster, nodes)
    if power:
        yield from power_saving(slurm, cluster, planned=planned)


def _states(cluster: Cluster, nodes: Sequence[SlurmNode]) -> Iterator[CheckLine]:
    ours = [node for node in nodes if node.name in set(cluster.names)]
    away = sorted(node.name for node in ours if node.out or node.silent)
    if away:
        finding = f"{len(away)} of {len(ours)} take no jobs now: {', '.join(away[:10])}"
        yield warning("node states", finding, "`sinfo -R` says why; they are used again once Slurm resumes them")


def kubernetes_checks(config: Scenario, cluster: Cluster, folder: Path) -> Iterator[CheckLine]:
    """Check the API server, the rights of its token, the nodes, and whether it would take our pods."""
    spec = config.live.kubernetes
    api = api_of(spec, folder)
    try:
        yield from _asked_of_kubernetes(config, cluster, folder, api)
    except EngineDownError as error:
        yield failed("engine", str(error), "see whether `kubectl get nodes` works with live.kubernetes.kubeconfig")
    except EngineError as error:
        yield failed("engine", str(error), "see deploy/kubernetes for the rights that are needed")
    finally:
        api.close()
    line = state_folder(config, folder, folder / spec.state)
    if line.verdict == "ok" and not spec.read_only:
        line = fine(line.what, f"{line.found}; all pods must see it under this path, which is not checked here")
    yield line
    if spec.read_only:
        yield fine("jobs", "none are started: live.kubernetes.read_only is set")
    elif spec.image is None:
        yield warning("images", "jobs that name no image cannot start", "set live.kubernetes.image")
    else:
        yield fine("images", f"jobs that name none run in {spec.image}, which needs {spec.python}")
    if spec.meter == "declared":
        yield fine("power readings", "computed from the declared power of nodes and GPUs, not measured")
    else:
        advice = "set live.kubernetes.meter to declared"
        yield warning("power readings", "none: energy and cost will be unknown", advice)


def _users_jobs(live: LiveSpec, api: KubernetesApi) -> Iterator[CheckLine]:
    """Check the rights in the namespaces where the Jobs of users are taken over."""
    spec = live.kubernetes
    for namespace in () if spec.read_only else spec.jobs:
        gangs = [kind for kind in spec.job_kinds if kind in GANG_RIGHTS]
        files = " and users-gangs.yaml" if gangs else ""
        advice = f"apply deploy/kubernetes/users-jobs.yaml{files} for namespace {namespace}"
        rights = [*USER_RIGHTS, *(right for kind in gangs for right in GANG_RIGHTS[kind])]
        denied = denied_rights(api, namespace, rights)
        if missing := [str(right) for right in denied if right.needed]:
            yield failed("users' jobs", f"in namespace {namespace}, the token may not {', '.join(missing)}", advice)
            continue
        for right in denied:
            yield warning(
                "users' jobs", f"in namespace {namespace}, the token may not {right}: {right.lacking}", advice
            )
        if absent := [kind for kind in gangs if not _is_served(api, KINDS[kind], namespace)]:
            advice = "install it, or take it out of live.kubernetes.job_kinds: until then no Job is taken over"
            yield failed("users' jobs", f"the API server does not know {', '.join(absent)}", advice)
            continue
        yield from _too_urgent(live, namespace)
        kinds, tenants = ", ".join(f"{kind}s" for kind in spec.job_kinds), ", ".join(spec.jobs[namespace])
        yield fine("users' jobs", f"{kinds} of namespace {namespace} are taken over for {tenants}")


def _too_urgent(live: LiveSpec, namespace: str) -> Iterator[CheckLine]:
    """Warn of priority classes that stand for more than a tenant may ask for: its Jobs are refused."""
    for name, asked in live.kubernetes.priority_classes.items():
        limits = {tenant: live.limits_of(tenant).tardiness_weight for tenant in live.kubernetes.jobs[namespace]}
        over = [tenant for tenant, most in limits.items() if most is not None and asked.tardiness_weight > most]
        if over:
            said = f"priority class {name} stands for more tardiness_weight than {', '.join(over)} may ask for"
            yield warning("users' jobs", said, "raise live.limits, or lower live.kubernetes.priority_classes")


def _is_served(api: KubernetesApi, kind: JobKind, namespace: str) -> bool:
    try:
        api.get(path_of(kind.resource, namespace, group=kind.group), limit="1")
    except RefusedByServerError as error:
        if error.status != 404:
            raise
        return False
    return True


def _asked_of_kubernetes(config: Scenario, cluster: Cluster, folder: Path, api: KubernetesApi) -> Iterator[CheckLine]:
    spec, advice = config.live.kubernetes, "bind the Role and ClusterRole of deploy/kubernetes to its user"
    settings = settings_of(spec, api.access.namespace)
    version = api.get("/version").get("gitVersion", "of an unknown version")
    rights = [right for right in RIGHTS if right.everywhere and right.needed] if spec.read_only else RIGHTS
    denied = denied_rights(api, settings.namespace, rights)
    if any(right.needed for right in denied):
        where = {False: f"in namespace {settings.namespace}", True: "in the whole cluster"}
        missing = {every: [str(r) for r in denied if r.needed and r.everywhere is every] for every in where}
        finding = "; ".join(f"the token may not {', '.join(missing[e])} {where[e]}" for e in where if missing[e])
        yield failed("rights", finding, f"{advice}{'; see whether there is such a namespace' * bool(missing[False])}")
        return
    for right in denied:
        yield warning("rights", f"the token may not {right}: {right.lacking}", advice)
    if not denied:
        yield fine("rights", "the token may do all that is needed")
    yield from _users_jobs(config.live, api)
    nodes = nodes_in(api)
    if spec.power is not None and not spec.read_only:
        yield _node_power(spec.power, api, settings.namespace, nodes)
    away = sorted(node.name for node in nodes if node.ready != "True" and node.name in cluster.names)
    yield fine("engine", f"Kubernetes {version} answers: {plural(len(nodes), 'node')}; pods of others are left alone")
    if unknown := sorted(spec.resources.keys() - {kind.gpu_type for kind in cluster.classes}):
        finding = f"live.kubernetes.resources names GPU types that no node has: {', '.join(unknown)}"
        yield warning("nodes", finding, "name the types of `nodes`")
    wrong, spare = mismatches(cluster, nodes, spec.resources)
    if wrong:
        yield failed("nodes", _shortened(wrong), "declare nodes as `kubectl get nodes` names them, GPUs as allocatable")
    elif spare:
        yield warning("nodes", _shortened(spare), "declare them if jobs may run there")
    else:
        yield fine("nodes", f"{len(cluster)} declared, as Kubernetes has them")
    if away:
        yield warning("node states", f"not ready: {', '.join(away[:10])}", "`kubectl describe node` says why")
    if spec.read_only:
        return
    try:
        unknown = dry_run(api, settings, cluster, (folder / spec.state).absolute())
    except EngineDownError:
        raise
    except EngineError as error:
        yield failed(
            "pods", f"a pod as commonwatt makes them is refused: {error}", "see live.kubernetes.pod and volumes"
        )
        return
    if unknown:
        said = f"the API server does not know {', '.join(unknown)} of live.kubernetes.pod, and leaves that out"
        yield failed("pods", said, "use fields of a pod's spec: `kubectl explain pod.spec` lists them")
    else:
        yield fine("pods", f"a pod as commonwatt makes them is accepted in namespace {settings.namespace} (dry run)")


def _node_power(power: NodePowerSpec, api: KubernetesApi, namespace: str, nodes: Sequence[Node]) -> CheckLine:
    """Check what it takes to put nodes to sleep."""
    what = "node power"
    if denied := denied_rights(api, namespace, POWER_RIGHTS):
        advice = "bind the ClusterRole commonwatt-drain of deploy/kubernetes/rbac.yaml to its user"
        return failed(what, f"the token may not {denied[0]}", advice)
    if shutil.which(power.hook[0]) is None:
        return failed(what, f"no program {power.hook[0]} here", "install it, or change live.kubernetes.power.hook")
    try:
        finding = autoscaler(api, nodes)
    except EngineDownError:
        raise
    except EngineError as error:
        advice = "apply deploy/kubernetes/power.yaml, or make sure that none is there"
        return warning(what, f"cannot look for an autoscaler: {error}", advice)
    if finding:
        return failed(what, f"expected {ALONE}; {finding}", "take live.kubernetes.power out, or the autoscaler away")
    return fine(what, f"{power.hook[0]} turns nodes off and on; no autoscaler was found")


def _shortened(sentences: Sequence[str]) -> str:
    more = f" and {len(sentences) - 5} more" if len(sentences) > 5 else ""
    return "; ".join(sentences[:5]) + more


def engine_checks(
    config: Scenario, cluster: Cluster, folder: Path, gpus: Callable[[], GpusHere] = gpus_here
) -> Iterator[CheckLine]:
    """Check the engine, its folders and its power readings."""
    if config.engine == "simulated":
        yield warning(
            "engine", "simulated: nothing really runs", "set `engine` to local, slurm or kubernetes to run jobs"
        )
        return
    if config.engine == "kubernetes":
        yield from kubernetes_checks(config, cluster, folder)
        return
    if config.engine == "local":
        yield from _local(config, cluster, folder, gpus())
    else:
        yield from slurm_checks(config, cluster, folder)
    program = config.live.image_command[0]
    program_path = shutil.which(program)
    if program_path is not None:
        yield fine("images", f"{program_path} runs container images")
    else:
        advice = f"install {program}, or set live.image_command; jobs without an image do not need it"
        yield warning("images", f"{program} is not installed here", advice)


def _local(config: Scenario, cluster: Cluster, folder: Path, gpus: GpusHere) -> Iterator[CheckLine]:
    spec = config.live.local
    declared = f"{plural(len(cluster), 'node')} with {plural(cluster.total_gpus, 'slot')}"
    yield fine("engine", f"local: processes on this machine, {declared}")
    yield state_folder(config, folder, folder / spec.state)
    yield _slots(config, cluster, gpus)
    if config.live.folder is not None:
        path = Path(config.live.folder)
        if path.is_dir() and os.access(path, os.R_OK | os.X_OK):
            yield fine("working folder", f"jobs that name none begin in {path}")
        else:
            yield failed("working folder", f"{path} cannot be entered", "make it, or change live.folder")
    yield _meter(config, gpus)


def _slots(config: Scenario, cluster: Cluster, gpus: GpusHere) -> CheckLine:
    what = "GPUs"
    used: dict[int, str] = {}
    for name, count, own in zip(cluster.names, map(int, cluster.gpus), slots_of(config, cluster), strict=True):
        if min(own, default=0) < 0:
            advice = "0 is the first GPU, 1 the second"
            return failed(what, f"live.local.slots.{name} has a number below 0", advice)
        if len(set(own)) != count:
            finding = f"node {name} has {plural(count, 'GPU')} and {plural(len(set(own)), 'different slot')}"
            return failed(what, finding, f"give live.local.slots.{name} as many different indices as it has GPUs")
        for slot in own:
            if slot in used:
                finding = f"slot {slot} belongs to {used[slot]} and to {name}"
                return failed(what, finding, "name different GPUs in live.local.slots")
            used[slot] = name
    if gpus.names is None:
        finding = f"no GPU is visible ({gpus.trouble}): the {len(used)} slots only limit how many jobs run"
        return fine(what, finding)
    missing = sorted(slot for slot in used if slot >= len(gpus.names))
    here = f"{len(gpus.names)} here ({', '.join(sorted(set(gpus.names))) or 'none'})"
    if missing and gpus.names:
        return failed(what, f"{here}, but slots {missing} are declared", "declare as many GPUs as there are")
    left = len(gpus.names) - len(used)
    if left > 0:
        return warning(what, f"{here}, {left} of them not declared", "declare them, unless others use them")
    return fine(what, f"{here}, all declared" if gpus.names else f"{here}: slots only limit how many jobs run")


def _meter(config: Scenario, gpus: GpusHere) -> CheckLine:
    what, meter = "power readings", config.live.local.meter
    if meter == "none":
        return warning(what, "none: energy and cost will be unknown", "set live.local.meter to declared or nvml")
    if meter == "declared":
        return fine(what, "computed from the declared power of nodes and GPUs, not measured")
    if gpus.names is None:
        return failed(what, gpus.trouble, "install the driver and commonwatt[gpu], or set live.local.meter to declared")
    without = [str(index) for index, metered in enumerate(gpus.metered) if not metered]
    if without or not gpus.names:
        finding = f"GPUs {', '.join(without)} have no energy counter" if without else "there is no GPU"
        return failed(what, finding, "set live.local.meter to declared")
    return fine(what, "every GPU has an energy counter (NVML)")


# -- promises to tenants
