"""Commands on the cluster of the control plane: its nodes, tenants, events and mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import json_option, print_json
from commonwatt.cli.remote import JOB, asked_of_nodes, connected, plain, server_option, show

if TYPE_CHECKING:
    from commonwatt.model.live_results import EventEntry, NodeState

__all__ = ["capacity", "drain", "events", "mode", "nodes", "savings", "services", "tenants", "undrain"]


@click.command()
@server_option
@json_option
def nodes(*, url: str | None, as_json: bool) -> None:
    """Show all nodes: their GPUs, who uses them, their power.

    \b
    Example:
      commonwatt nodes --json
    """
    from commonwatt.model.units import plural

    with connected(url) as client:
        page = client.nodes()
    if as_json:
        print_json(page)
        return
    rows = [
        (
            node.name, node.gpu_type, f"{node.held_gpus}/{node.gpus}",
            _state(node),
            "unknown" if node.power_w is None else f"{node.power_w:,.0f}", " ".join(map(str, node.jobs)),
        )
        for node in page.nodes
    ]  # fmt: skip
    allocated, total = sum(n.held_gpus for n in page.nodes), sum(n.gpus for n in page.nodes)
    headings = ("node", "GPU type", "GPUs allocated", "state", "power, W", "jobs")
    show(
        f"{plural(len(page.nodes), 'node')}, {allocated} of {plural(total, 'GPU')} allocated",
        headings,
        rows,
        right=("GPUs allocated", "power, W"),
    )


def _state(node: NodeState) -> str:
    """Return the state of a node, why it is down, and its usable GPUs where those are not all."""
    if node.cause:
        return f"{node.state}{', drained' if node.drained else ''}: {node.cause}"
    if node.drained:
        return f"{node.state}, drained"
    few = node.state == "on" and node.usable_gpus < node.gpus
    return f"{node.state}, {node.usable_gpus} usable" if few else node.state


@click.command()
@click.option(
    "--hours", type=click.FloatRange(0, 24 * 31, min_open=True), default=24.0, show_default=True,
    help="How far to look back.",
)  # fmt: skip
@server_option
@json_option
def capacity(*, hours: float, url: str | None, as_json: bool) -> None:
    """Show the capacity plan: GPUs kept on by pool, the promise, the power budget (operators).

    \b
    Examples:
      commonwatt capacity
      commonwatt capacity --hours 168 --json
    """
    from commonwatt.model.units import plural

    with connected(url) as client:
        state = client.capacity(hours=hours)
    if as_json:
        print_json(state)
        return
    if state.policy is None:
        click.echo("no capacity plan: all nodes stay on")
        return
    title = f"capacity plan {state.policy}" + ("" if state.target is None else f", promise {state.target}")
    rows = [
        (
            pool.name or "all nodes", str(pool.gpus), str(pool.on_gpus), str(pool.wanted_gpus),
            str(pool.promised_gpus), "kept" if pool.kept else "not kept",
        )
        for pool in state.pools
    ]  # fmt: skip
    headings = ("pool", "GPUs", "on", "wanted", "promised", "promise")
    show(title, headings, rows, right=headings[1:-1])
    for pool in state.pools:
        if not pool.kept:
            click.echo(plain(f"{pool.name or 'promise'}: {pool.sentence}"))
    if (budget := state.budget) is not None:
        limit = "none now" if budget.limit_w is None else f"{budget.limit_w / 1e3:,.1f} kW"
        click.echo(
            f"power budget {limit}: nodes count for {budget.counted_w / 1e3:,.1f} kW; it keeps "
            f"{plural(budget.nodes_off, 'node')} off, and {plural(budget.waiting_jobs, 'job')} waiting"
        )
    if state.mean_on_gpus is not None and state.served_share is not None:
        click.echo(
            f"last {state.period_s / 3600:.3g} h: {state.mean_on_gpus:,.1f} of {plural(state.total_gpus, 'GPU')} on, "
            f"{state.mean_wanted_gpus:,.1f} wanted, enough on for {state.served_share:.1%} of the time"
        )


@click.command()
@click.option("--phi", type=click.FloatRange(0, 1), help="Set phi of shared GPUs, then show the result (operators).")
@server_option
@json_option
def services(*, phi: float | None, url: str | None, as_json: bool) -> None:
    """Show inference services: replicas, GPU share, requests, lateness, energy. A tenant sees its own.

    \b
    Examples:
      commonwatt services --json
      commonwatt services --phi 0.5
    """
    from commonwatt.report import format as fmt

    with connected(url) as client:
        if phi is not None:
            client.set_phi(phi)
        page = client.services()
    if as_json:
        print_json(page)
        return
    rows = [
        (
            s.name, s.tenant, f"{s.ready}/{s.replicas}", f"{s.gpus:.3g}", f"{s.requests_per_s:.3g}", f"{s.requests:,}",
            "-" if s.late_share is None else f"{s.late_share:.1%}", _ms(s.p50_s), _ms(s.p99_s),
            _ms(s.latency_target_s), fmt.energy(None if s.energy_j is None else s.energy_j / 3.6e6),
        )
        for s in page.services
    ]  # fmt: skip
    headings = (
        "service", "tenant", "ready", "GPUs", "per s", "requests", "late", "p50, ms", "p99, ms", "target", "energy",
    )  # fmt: skip
    show(fmt.plural(len(rows), "service"), headings, rows, right=headings[2:])
    for service in page.services:
        click.echo(plain(service.trouble or f"{service.sentence}; {service.url or 'its front is not up yet'}"))


def _ms(value_s: float | None) -> str:
    return "-" if value_s is None else f"{1e3 * value_s:.3g}"


@click.command()
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@server_option
@json_option
def drain(nodes: tuple[str, ...], *, url: str | None, as_json: bool) -> None:
    """Drain nodes (operators): let running jobs finish, start no new ones.

    \b
    Example:
      commonwatt drain gpu-3
    """
    asked_of_nodes(url, nodes, lambda client, node: client.drain(node), "will be drained", as_json=as_json)


@click.command()
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@server_option
@json_option
def undrain(nodes: tuple[str, ...], *, url: str | None, as_json: bool) -> None:
    """Return drained nodes to service (operators).

    \b
    Example:
      commonwatt undrain gpu-3
    """
    asked_of_nodes(url, nodes, lambda client, node: client.undrain(node), "will have jobs again", as_json=as_json)


@click.command()
@click.argument("mode", type=click.Choice(["live", "power", "dry-run"]), required=False)
@server_option
@json_option
def mode(mode: str | None, *, url: str | None, as_json: bool) -> None:
    """Show whether decisions are carried out (live) or only recorded (dry-run). With MODE, switch (operators).

    In mode power, Slurm places all jobs, and only the capacity plan is carried out. Running jobs are not affected.

    \b
    Example:
      commonwatt mode dry-run
    """
    from commonwatt.model.live_results import ModeState

    with connected(url) as client:
        state = ModeState(mode=client.cluster().mode) if mode is None else client.set_mode(mode)
    if as_json:
        print_json(state)
    else:
        click.echo(f"mode {state.mode}" if mode is None else f"mode {state.mode}, effective at the next tick")


@click.command()
@server_option
@json_option
def savings(*, url: str | None, as_json: bool) -> None:
    """Show what the policy saves against the baseline (operators); in a dry run, what it would have saved.

    An estimate: every quarter of an hour, the control plane simulates the jobs it has seen under both policies.

    \b
    Example:
      commonwatt savings --json
    """
    from commonwatt.model.live_results import SavingsState
    from commonwatt.report import format as fmt

    with connected(url) as client:
        who, cluster = client.whoami(), client.cluster()
        state = SavingsState(mode=cluster.mode, currency=client.tenants().currency, saved=cluster.saved)
    if as_json:
        print_json(state)
    elif not who.operator:
        click.echo("only operators see savings: they are of all jobs")
    elif state.saved is None:
        click.echo("no estimate yet: the first is made a minute after the start, once there are jobs")
    else:
        click.echo(fmt.savings(state.saved, state.currency, dry=state.mode == "dry-run"))


@click.command()
@click.option(
    "--set", "order", metavar="NAME=WEIGHT", help="Add a tenant or change its weight, then show all (operators)."
)
@click.option(
    "--phi", type=click.FloatRange(0, 1),
    help="Set the guaranteed part of their fair shares, then show all (operators).",
)  # fmt: skip
@server_option
@json_option
def tenants(*, order: str | None, phi: float | None, url: str | None, as_json: bool) -> None:
    """Show tenants: entitlement, GPU time, energy and cost. A tenant sees only itself.

    \b
    Examples:
      commonwatt tenants
      commonwatt tenants --set vision=2.5
      commonwatt tenants --phi 0.7
    """
    from commonwatt.report import format as fmt

    change = None if order is None else _order(order)
    with connected(url) as client:
        if change is not None:
            client.set_tenant(*change)
        if phi is not None:
            client.set_fairness(phi)
        page = client.tenants()
    if as_json:
        print_json(page)
        return
    energies = fmt.column(fmt.energy, [None if t.energy_j is None else t.energy_j / 3.6e6 for t in page.tenants])
    rows = [
        (
            t.name, f"{t.weight:g}", _promised(t.entitlement), _share(t.gpu_share), _share(t.energy_share),
            f"{t.gpu_s / 3600:,.1f}", energy,
            fmt.money(t.cost, page.currency), str(t.jobs.get("running", 0)), str(t.jobs.get("waiting", 0)),
        )
        for t, energy in zip(page.tenants, energies, strict=True)
    ]  # fmt: skip
    headings = (
        "tenant", "weight", "entitled to", "of GPU time", "of energy", "GPU hours", "energy", "cost", "running",
        "waiting",
    )  # fmt: skip
    guaranteed = "" if page.phi is None else f", guaranteed {page.phi:.0%} of their fair shares"
    show(f"{fmt.plural(len(rows), 'tenant')}{guaranteed}", headings, rows, right=headings[1:])
    if phi is not None:
        click.echo(f"guaranteed {phi:.0%}, effective at the next tick")


def _promised(value: float | None) -> str:
    return "not enforced" if value is None else f"{value:.1%}"


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def _order(text: str) -> tuple[str, float]:
    from commonwatt.model.errors import InputError

    name, _, number = text.rpartition("=")
    try:
        weight = float(number)
    except ValueError:
        weight = 0.0
    if not name or not 0 < weight <= 1e9:
        raise InputError("a name and a weight above 0, such as vision=2.5", field="--set", value=text)
    return name, weight


_MOST = 20
"""Nodes of an event that are named; --json has all."""
_NAMES_NODES = frozenset({
    "started", "resumed", "resized", "migrated", "preempted", "would-start", "would-move", "would-preempt",
})  # fmt: skip
"""Kinds of events whose sentences say where the job is."""


@click.command()
@click.option("--job", type=JOB, help="Show events of this job only.")
@click.option("--after", type=click.IntRange(0, 2**53 - 1), default=0, help="Show only events with a larger number.")
@click.option("--last", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Show at most this many.")
@server_option
@json_option
def events(*, job: int | None, after: int, last: int, url: str | None, as_json: bool) -> None:
    """Show the latest events: of all visible jobs, or of one. In a dry run, these are the actions not taken.

    \b
    Examples:
      commonwatt events --job 17
      commonwatt events --after 4210 --json
    """
    from datetime import UTC, datetime
    from itertools import islice

    from commonwatt.model.live_results import EventPage

    with connected(url) as client:
        newest = client.events(job=job, after=after, newest_first=True, page=min(last, 500))
        latest = tuple(islice(newest, last))[::-1]
    if as_json:
        print_json(EventPage(events=latest, next_after=latest[-1].id if latest else after))
        return
    for event in latest:
        at = datetime.fromtimestamp(event.time_s, UTC).isoformat(sep=" ", timespec="seconds")[:19]
        whose = "" if event.job is None else f"job {event.job}: "
        said = f"{whose}{event.sentence or event.reason or event.kind}{_where(event)}"
        click.echo(plain(f"{event.id:>7}  {at}Z  {event.kind:<13} {said}"))


def _where(event: EventEntry) -> str:
    """Return the nodes of an event, the first few if they are many, unless its sentence names them."""
    if not event.nodes or (event.sentence and event.kind in _NAMES_NODES):
        return ""
    more = f" and {len(event.nodes) - _MOST} more" if len(event.nodes) > _MOST else ""
    return f" ({', '.join(event.nodes[:_MOST])}{more})"
