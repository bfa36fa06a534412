"""``commonwatt init``."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import json_option, kubernetes_options, print_json, print_message

if TYPE_CHECKING:
    from commonwatt.model.admin_results import InitResult

__all__ = ["command"]

COMMANDS = (
    ("scontrol", "show", "node", "-o"),
    ("nvidia-smi", "--query-gpu=index,name,power.limit", "--format=csv"),
    ("kubectl", "get", "nodes", "-o", "json"),
)
TOPOLOGY = ("scontrol", "show", "topology")
TIMEOUT_S = 20.0
_KUBERNETES = "kubernetes"


@click.command(context_settings={"allow_extra_args": True})
@click.option(
    "--from", "source", type=click.Path(allow_dash=True), metavar="FILE",
    help="Read the output of one of these commands, - for standard input; or `kubernetes`, to ask its API server.",
)  # fmt: skip
@kubernetes_options
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the scenario to FILE, not to the terminal."
)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, source: str | None, *, kubeconfig: Path | None, context: str | None, topology: str | None,
    near: tuple[str, ...], out: Path | None, overwrite: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write a scenario for this cluster: nodes, power by GPU type, a price, policies.

    Nodes come from the first of scontrol, nvidia-smi and kubectl that answers, or from FILE: the output of `scontrol
    show node`, `sinfo -N -h -o '%N|%G'`, `nvidia-smi` or `kubectl get nodes -o json`. What `scontrol show topology`
    prints, after that, is where nodes are in the network. Nothing on the cluster is changed. With `--from kubernetes`
    the API server is asked, as by `commonwatt attach kubernetes`; kubectl is not needed.

    \b
    Examples:
      commonwatt init --out cluster.yaml
      scontrol show node | commonwatt init --from - --out cluster.yaml
      (scontrol show node; scontrol show topology) | commonwatt init --from -
      kubectl get nodes -o json | commonwatt init --from -
      commonwatt init --from kubernetes --kubeconfig observer.kubeconfig
    """
    from commonwatt.data.files import write_atomic
    from commonwatt.data.scenario_draft import draft_scenario
    from commonwatt.engines.slurm.parsing import host_names
    from commonwatt.model.errors import InputError

    if ctx.args:
        ctx.fail(f"Got unexpected extra argument ({ctx.args[0]}): use --from {ctx.args[0]}")
    if source != _KUBERNETES and (kubeconfig is not None or context is not None):
        ctx.fail("--kubeconfig and --context need --from kubernetes")
    if out is not None and out.exists() and not overwrite:
        raise InputError("a new file, or --overwrite", field="--out", value=out)
    if source == _KUBERNETES:
        text, origin = _asked_kubernetes(kubeconfig, context)
    else:
        text, origin = _given(source) if source is not None else _asked()
    scenario, result = draft_scenario(
        text, host_names, file=origin, host=platform.node() or "node", out=out, topology=topology, near=near
    )
    if out is not None:
        write_atomic(out, scenario)
    for note in result.notes:
        print_message(f"note: {note}")
    print_message(_sentence(result))
    if as_json:
        print_json(result)
    elif out is None:
        click.echo(scenario, nl=False)


def _given(source: str) -> tuple[str, object]:
    from commonwatt.data.text import read_text
    from commonwatt.model.errors import InputError

    if source != "-":
        return read_text(Path(source)), source
    text = sys.stdin.read()
    if not text.strip():
        raise InputError("some content", file="standard input", value="nothing")
    return text, "standard input"


def _asked_kubernetes(kubeconfig: Path | None, context: str | None) -> tuple[str, object]:
    """Return the nodes of a cluster as kubectl prints them."""
    import json
    from contextlib import closing

    from commonwatt.engines.kubernetes.connect import api_once, listed

    with closing(api_once(kubeconfig, context)) as api:
        print_message(f"asking {api.access.server}")
        return json.dumps({"kind": "NodeList", "items": list(listed(api, "nodes"))}), "the nodes of Kubernetes"


def _asked() -> tuple[str, object]:
    """Return the output of the first command that is installed and succeeds."""
    import shutil
    import subprocess

    from commonwatt.model.errors import InputError

    for words in COMMANDS:
        if shutil.which(words[0]) is None:
            continue
        shown = " ".join(words)
        print_message(f"running {shown}")
        try:
            done = subprocess.run(  # noqa: S603
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            print_message(f"{words[0]}: {error}")
            continue
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout + (_asked_topology() if words[0] == "scontrol" else ""), shown
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        print_message(f"{words[0]}: {lines[-1]}")
    given = "--from FILE with the output of one of them, or --from kubernetes"
    raise InputError(f"scontrol, nvidia-smi or kubectl on this machine, {given}")


def _asked_topology() -> str:
    """Return what Slurm prints of its network; nothing if it does not say."""
    import subprocess

    try:
        done = subprocess.run(  # noqa: S603
            TOPOLOGY, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return f"\n{done.stdout}" if done.returncode == 0 else ""


def _sentence(result: InitResult) -> str:
    from commonwatt.model.units import plural

    parts = sum(node.count for node in result.nodes if node.host is None)
    nodes = parts + len({node.host for node in result.nodes if node.host is not None})
    gpus = sum(node.count * node.gpus for node in result.nodes)
    left_out = f"; left out {plural(result.left_out, 'node')} without GPUs" if result.left_out else ""
    written = f"written: {result.written}, " if result.written else ""
    return f"{written}{plural(nodes, 'node')} with {plural(gpus, 'GPU')} from {result.source}{left_out}"
