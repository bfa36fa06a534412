"""``commonwatt attach``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commonwatt.cli.output import FiniteRange, json_option, kubernetes_options, print_json, print_message, seed_option
from commonwatt.cli.root import VerbGroup

if TYPE_CHECKING:
    from commonwatt.control.external_jobs import ExternalJob
    from commonwatt.engines.slurm.commands import Slurm
    from commonwatt.model.admin_results import AttachResult, InitNode
    from commonwatt.model.nodes import NodeSpec
    from commonwatt.model.study_results import StudyResult

__all__ = ["command"]

_HISTORY_S = 600.0
_NEXT = """
# The next step: Slurm goes on placing all jobs, and only the power of nodes is switched (docs/how-to/live.md). Then, in
# `live`, set `mode: power`, remove `read_only`, and add `power: true` to `slurm`; give the nodes that may sleep
#   states: [{name: off, power_w: 15, enter_s: 120, wake_s: 300}]
# with times that you have measured, and take the # away here:
# capacity: {policy: cuff, forecaster: last-value, target: 0.98}
#
# To place jobs, too: name who may submit them, and the partitions that are handed over (`place_in`).
# tenants: [{name: vision}, {name: speech}]
"""
_NODES, _JOBS, _CONFIG, _STUDY = "nodes.txt", "jobs.txt", "live.yaml", "study"


@click.group(cls=VerbGroup)
def command() -> None:
    """Attach to a running cluster without changing anything.

    \b
    Example:
      commonwatt attach slurm --out attached
    """


@command.command(short_help="Show what commonwatt would have saved on this Slurm.")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="New folder to write to.")
@click.option(
    "--days", type=FiniteRange(min=0.05, max=366), default=7.0, show_default=True, help="Days of history to study."
)
@click.option("--price", type=FiniteRange(min=0), default=0.20, show_default=True, help="Price of a kWh.")
@click.option("--pue", type=FiniteRange(min=1), default=1.4, show_default=True, help="Power usage effectiveness.")
@click.option("--currency", default="EUR", show_default=True, metavar="NAME", help="Currency of the price.")
@click.option("--conf", type=click.Path(path_type=Path), metavar="FILE", help="slurm.conf, instead of the default one.")
@click.option("--overwrite", is_flag=True, help="Write to DIR even if it exists; keep its store.")
@seed_option
@json_option
def slurm(
    *, out: Path, days: float, price: float, pue: float, currency: str, conf: Path | None, overwrite: bool, seed: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Show what commonwatt would have saved on this machine's Slurm, and prepare a read-only control plane.

    Runs scontrol, squeue and sacct, and changes nothing. Writes their output to DIR, a study of the last days
    (study/report.html), and the configuration of a control plane that observes, decides and never acts: `commonwatt
    serve DIR/live.yaml` shows its decisions on the dashboard.

    \b
    Example:
      commonwatt attach slurm --out attached --price 0.21 --pue 1.3
    """
    from commonwatt import __version__
    from commonwatt.engines.slurm.connect import slurm_of
    from commonwatt.engines.slurm.snapshot import external_jobs
    from commonwatt.model.admin_results import AttachResult
    from commonwatt.model.errors import InputError
    from commonwatt.model.live import SlurmSpec

    if out.exists() and not overwrite:
        raise InputError("a new folder, or --overwrite", field="--out", value=out)
    spec = SlurmSpec(conf=None if conf is None else str(conf.absolute()), read_only=True, command_timeout_s=_HISTORY_S)
    client = slurm_of(spec)
    client.ping()
    text = client.run("scontrol", "--details", "--oneliner", "show", "node") + _topology(client)
    nodes, notes = _nodes(text, "scontrol show node", out)
    now = external_jobs(client, "")
    settings = {"state": "state", "read_only": True} | ({} if conf is None else {"conf": str(conf.absolute())})
    _write_config(out, nodes, (price, pue, currency), ("slurm", settings))
    jobs = _history(client, out, days, notes)
    study = None if jobs is None else _studied(out, nodes, (days, price, pue, currency), seed, notes)
    steps = () if study is None else study.waterfall
    last = next((step.saved_pct for step in reversed(steps) if step.saved_pct is not None), None)
    result = AttachResult(
        version=__version__, seed=seed, input_digest=_digest(out), folder=str(out), config=str(out / _CONFIG),
        nodes=sum(node.count for node in nodes), gpus=sum(node.count * node.gpus for node in nodes), days=days,
        running=_running(now), queued=sum(job.state == "waiting" for job in now), history_jobs=jobs, notes=tuple(notes),
        report=None if study is None else str(out / _STUDY / "report.html"),
        saving_pct=None if study is None else study.conservative_saving_pct, saving_with_everything_pct=last,
    )  # fmt: skip
    if as_json:
        print_json(result)
    else:
        _show(result, study)


@command.command(short_help="Count GPUs and waiting pods; show what commonwatt would do.")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="New folder to write to.")
@click.option("--price", type=FiniteRange(min=0), default=0.20, show_default=True, help="Price of a kWh.")
@click.option("--pue", type=FiniteRange(min=1), default=1.4, show_default=True, help="Power usage effectiveness.")
@click.option("--currency", default="EUR", show_default=True, metavar="NAME", help="Currency of the price.")
@kubernetes_options
@click.option("--overwrite", is_flag=True, help="Write to DIR even if it exists; keep its store.")
@seed_option
@json_option
def kubernetes(
    *, out: Path, price: float, pue: float, currency: str, kubeconfig: Path | None, context: str | None,
    topology: str | None, near: tuple[str, ...], overwrite: bool, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Count the GPUs and the pods that use or await them, and prepare a read-only control plane.

    Lists nodes and pods, and changes nothing: deploy/kubernetes/read-only.yaml has the two rights that it needs. Writes
    the nodes to DIR, and the configuration of a control plane that watches, decides and never acts: `commonwatt serve
    DIR/live.yaml` shows what it would do with the pods of others, and what that would save. Kubernetes keeps no
    accounts of pods that are gone, so there is no study of the past; where there is a log of jobs, use `study`.

    \b
    Example:
      commonwatt attach kubernetes --out attached --kubeconfig observer.kubeconfig
    """
    from commonwatt import __version__
    from commonwatt.engines.kubernetes.connect import api_once, listed
    from commonwatt.engines.kubernetes.objects import node_of, pod_of
    from commonwatt.engines.kubernetes.snapshot import external_jobs
    from commonwatt.model.admin_results import AttachResult
    from commonwatt.model.errors import InputError
    from commonwatt.model.nodes import Cluster

    if out.exists() and not overwrite:
        raise InputError("a new folder, or --overwrite", field="--out", value=out)
    where = {"kubeconfig": None if kubeconfig is None else str(kubeconfig.absolute()), "context": context}
    with closing(api_once(kubeconfig, context)) as api:
        items = list(listed(api, "nodes"))
        pods = [pod_of(item) for item in listed(api, "pods")]
    text = json.dumps({"kind": "NodeList", "items": items})
    nodes, notes = _nodes(text, "the nodes of Kubernetes", out, topology, near)
    settings = {"state": "state", "read_only": True} | {key: value for key, value in where.items() if value is not None}
    _write_config(out, nodes, (price, pue, currency), ("kubernetes", settings))
    by_name = {node.name: node for node in map(node_of, items)}
    now = external_jobs(pods, by_name, Cluster.of(map(_declared, nodes)), {})
    notes.append(
        "no study: Kubernetes keeps no accounts of jobs that are over; `savings` counts from when it is served"
    )
    result = AttachResult(
        version=__version__, seed=seed, input_digest=_digest(out), folder=str(out), config=str(out / _CONFIG),
        nodes=sum(node.count for node in nodes), gpus=sum(node.count * node.gpus for node in nodes), days=0.0,
        running=_running(now), queued=sum(job.state == "waiting" for job in now), history_jobs=None, report=None,
        saving_pct=None, saving_with_everything_pct=None, notes=tuple(notes),
    )  # fmt: skip
    if as_json:
        print_json(result)
    else:
        _show(result, None)


def _topology(client: Slurm) -> str:
    """Return what Slurm prints of its network; nothing if it does not say."""
    from commonwatt.model.errors import EngineError

    try:
        return f"\n{client.run('scontrol', 'show', 'topology')}"
    except EngineError:
        return ""


def _nodes(
    text: str, source: str, out: Path, topology: str | None = None, near: tuple[str, ...] = ()
) -> tuple[tuple[InitNode, ...], list[str]]:  # fmt: skip
    from commonwatt.data.inventory import read_inventory
    from commonwatt.data.scenario_draft import by_labels, drafted_nodes
    from commonwatt.engines.slurm.parsing import host_names

    inventory = by_labels(read_inventory(text, host_names, file=source), text, topology, near)
    out.mkdir(parents=True, exist_ok=True)
    (out / _NODES).write_text(text, encoding="utf-8")
    nodes = drafted_nodes(inventory.nodes)
    notes = list(inventory.notes)
    if inventory.without_gpus:
        notes.append(f"left out: nodes without GPUs ({inventory.without_gpus})")
    if unknown := _unknown(nodes):
        notes.append(f"the speed of {', '.join(unknown)} is a placeholder: set gpu_types in {out / _CONFIG}")
    notes += inventory.power_notes()
    return nodes, notes


def _write_config(
    out: Path, nodes: tuple[InitNode, ...], prices: tuple[float, float, str], engine: tuple[str, dict[str, Any]],
) -> None:  # fmt: skip
    import yaml

    from commonwatt.data.files import parse_yaml, validate, write_atomic
    from commonwatt.data.scenario_draft import observed_text
    from commonwatt.model.scenario import Scenario

    kind, settings = engine
    live = yaml.safe_dump({"live": {"mode": "dry-run", "store": "live.db", kind: settings}}, sort_keys=False)
    head = f"# Written by `commonwatt attach {kind}`: observes, decides, and changes nothing (read_only).\n"

    def text(some: tuple[InitNode, ...]) -> str:
        slurm = kind == "slurm"
        observed = observed_text(some, Path(_CONFIG).stem, prices, sizes=slurm)
        return f"{head}{observed}\nengine: {kind}\n{live}{_NEXT if slurm else ''}"

    validate(parse_yaml(text(nodes[:1])), Scenario, out / _CONFIG)  # reading thousands of nodes takes seconds
    write_atomic(out / _CONFIG, text(nodes))


def _declared(node: InitNode) -> NodeSpec:
    from commonwatt.model.nodes import NodeSpec

    return NodeSpec(
        name=node.name, count=node.count, gpu_type=node.gpu_type, gpus=node.gpus, idle_w=node.idle_w, gpu_w=node.gpu_w,
        host=node.host, features=node.features, domain=node.domain,
    )  # fmt: skip


def _history(client: Slurm, out: Path, days: float, notes: list[str]) -> int | None:
    """Write down the accounts of the last *days*; returns how many jobs, ``None`` if Slurm keeps none."""
    from commonwatt.data.readers.slurm import SACCT_FIELDS
    from commonwatt.model.errors import EngineError

    print_message(f"asking sacct for the last {days:g} days")
    try:
        text = client.run(
            "sacct", "--allusers", f"--starttime=now-{round(24 * days)}hours", "--parsable2",
            f"--format={','.join(SACCT_FIELDS)}",
        )  # fmt: skip
    except EngineError as error:
        notes.append(f"no history, and so no study: {error}")
        return None
    (out / _JOBS).write_text(text, encoding="utf-8")
    return sum(line.partition("|")[0].partition(".")[2] == "" for line in text.splitlines()[1:])


def _unknown(nodes: tuple[InitNode, ...]) -> tuple[str, ...]:
    from commonwatt.data.scenario_draft import unknown_types

    return unknown_types(nodes)


def _studied(
    out: Path, nodes: tuple[InitNode, ...], given: tuple[float, float, float, str], seed: int, notes: list[str]
) -> StudyResult | None:
    """Study the history; returns the result, ``None`` if there was nothing to study."""
    from commonwatt.model.errors import InputError
    from commonwatt.report.study_folder import check_study_folder, write_study
    from commonwatt.studies.draft import DraftOptions, load_study
    from commonwatt.studies.run import plan_study, run_study
    from commonwatt.studies.summary import study_result

    days, price, pue, currency = given
    options = DraftOptions(
        nodes=out / _NODES, source="slurm", days=days, weeks=1, price_per_kwh=price, pue=pue, currency=currency
    )
    try:
        file, folder = load_study(str(out / _JOBS), options)
        if unknown := {node.gpu_type for node in file.nodes if node.gpu_type} & set(_unknown(nodes)):
            kept = tuple(node for node in file.nodes if node.gpu_type not in unknown)
            file = file.model_copy(update={"nodes": kept})
            notes.append(f"left out of the study, as their speed is not known: nodes with {', '.join(sorted(unknown))}")
        check_study_folder(out / _STUDY, file, folder, overwrite=True)
        plan = plan_study(file, folder, seed)
        print_message(f"{plan.first().sentence}: simulating what other schedulers would have done")
        outcome = run_study(plan, folder=out / _STUDY, jobs=None)
    except InputError as error:
        notes.append(f"no study: {error}")
        return None
    result = study_result(plan, outcome)
    write_study(out / _STUDY, file, folder, result)
    notes += result.notes
    return result


def _running(jobs: list[ExternalJob]) -> int:
    return sum(job.state == "running" for job in jobs)


def _digest(out: Path) -> str:
    import hashlib

    digest = hashlib.sha256()
    for name in (_NODES, _JOBS):
        if (out / name).exists():
            digest.update((out / name).read_bytes())
    return digest.hexdigest()


def _show(result: AttachResult, study: StudyResult | None) -> None:
    for line in _lines(result, study):
        click.echo(line)


def _lines(result: AttachResult, study: StudyResult | None) -> Iterator[str]:
    from commonwatt.model.units import plural

    now = f"{plural(result.running, 'job')} with GPUs running, {result.queued} waiting"
    yield f"attached, read-only: {plural(result.nodes, 'node')} with {plural(result.gpus, 'GPU')}; {now}"
    if study is not None:
        from commonwatt.report.study_text import about, headline, signed_pct

        yield f"the last {result.days:g} days: {about(study)}"
        yield headline(study)
        if result.saving_with_everything_pct is not None:
            everything = signed_pct(result.saving_with_everything_pct)
            yield f"with every step of the report, each of which asks for more: {everything} less energy"
        yield f"report: {result.report}"
    for note in result.notes:
        yield f"note: {note}"
    yield f"what it would do from now on: commonwatt serve {result.config}"
