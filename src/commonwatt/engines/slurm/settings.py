"""Times and options of a site, and the options of a submission made from them."""

from __future__ import annotations

import math
import pwd
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from commonwatt.engines.local import runner
from commonwatt.engines.run_spec import RunSpec
from commonwatt.engines.state_folder import make_identity
from commonwatt.model.errors import EngineError, InputError

__all__ = ["GONE_S", "SlurmSettings", "prepare", "submission"]

GONE_S = 1.0
"""How long to wait for a job that was killed, or that Slurm is taking off its nodes."""

_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*")
_EXPORT = "HOME,LANG,LOGNAME,PATH,SHELL,USER"
"""All a job gets of the environment of the controller, which may contain secrets."""


@dataclass(frozen=True)
class SlurmSettings:
    """How the engine uses a Slurm. All times in seconds.

    Attributes
    ----------
    cluster_id
        First part of the name our jobs carry in Slurm.
    options
        Options of every submission, such as ``--partition=gpu``, ``--account=ml`` or ``--mem-per-gpu=64G``.
    cpus_per_gpu
        CPUs requested with each GPU.
    power
        Whether nodes may be put to sleep; requires Slurm's power saving and an operator of Slurm.
    users
        Users of this machine whose jobs ours are in Slurm, beside the user of this process.
    requeue_cancelled
        Whether a job that somebody else cancels in Slurm is queued again; if not, it is cancelled.
    python
        Python 3.9 or newer on the nodes, which runs the batch script.
    grace_s
        Time between asking a job to stop and killing it.
    patience_s
        How much longer its runner may take before Slurm kills the job, and how long to wait then for Slurm to take it
        off its nodes.
    start_s
        How long a job may wait in Slurm's queue for GPUs that were free, before it is withdrawn.
    lag_s
        How late a file written on a node may appear here after Slurm reports that the job is over.
    look_s
        How old the engine's snapshot of the cluster may be.
    runner_look_s
        How often a running job checks whether it was given up, as after Slurm lost its node.
    """

    cluster_id: str = "commonwatt"
    options: tuple[str, ...] = ()
    cpus_per_gpu: int = 1
    power: bool = False
    users: frozenset[str] = frozenset()
    requeue_cancelled: bool = False
    python: str = "/usr/bin/python3"
    grace_s: float = 30.0
    patience_s: float = 10.0
    start_s: float = 60.0
    lag_s: float = 10.0
    look_s: float = 1.0
    runner_look_s: float = 5.0

    @property
    def kill_s(self) -> float:
        """Time after a request to stop at which a job is killed."""
        return self.grace_s + self.patience_s

    def __post_init__(self) -> None:
        for option in self.options:
            if not option.startswith("--") or len(option) < 3:
                raise InputError("an option of sbatch, as --name or --name=value", field="options", value=option)
        if not self.python.startswith("/") or any(sign.isspace() for sign in self.python) or len(self.python) > 120:
            raise InputError("the absolute path of a Python, without blanks", field="python", value=self.python)
        if not self.cluster_id.isprintable() or " " in self.cluster_id or not self.cluster_id:
            raise InputError("a name without blanks", field="cluster_id", value=self.cluster_id)
        if self.cpus_per_gpu < 1:
            raise InputError("a whole number, 1 or more", field="cpus_per_gpu", value=self.cpus_per_gpu)


def submission(
    settings: SlurmSettings, spec: RunSpec, nodes: Sequence[str], gpu_type: str, folder: Path, comment: str
) -> list[str]:
    """Return the options of ``sbatch`` for a run.

    Parameters
    ----------
    nodes
        Names of the nodes, all of which it gets.
    gpu_type
        Slurm's name for the type of its GPUs; "" if it needs none.
    folder
        The run's own folder, where Slurm's part of the output goes.
    comment
        Identifies the job.

    Raises ``EngineError`` if this machine does not know the user of the run.
    """
    gpus = f"gpu:{gpu_type}:{spec.gpus_per_node}" if gpu_type else f"gpu:{spec.gpus_per_node}"
    name = "".join(sign if sign.isprintable() else " " for sign in spec.name)[:100]
    escaped = str(folder).replace("\\", "\\\\").replace("%", "%%")
    limit = []
    if spec.limit_s is not None:  # the runner enforces it to the second; this is for Slurm's planning
        limit = [f"--time={math.ceil((spec.limit_s + spec.grace_s + settings.patience_s) / 60) + 1}"]
    owner = []
    if spec.user is not None:
        try:
            owner = [f"--uid={spec.user}", f"--gid={pwd.getpwnam(spec.user).pw_gid}"]
        except KeyError:
            msg = f"start {spec.name}: there is no user {spec.user} on this machine"
            raise EngineError(msg) from None
    own = [] if spec.memory_gib is None else [f"--mem={math.ceil(1024 * spec.memory_gib)}M"]
    asks = any(option.startswith("--mem") for option in (*spec.options, *own))
    cpus = spec.gpus_per_node * settings.cpus_per_gpu if spec.cpus is None else math.ceil(spec.cpus)
    return [
        *(option for option in settings.options if not (asks and option.startswith("--mem"))),  # one of them at most
        f"--job-name={name}",
        f"--comment={comment}",
        f"--nodes={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={cpus}",
        *own,
        *spec.options,
        *owner,
        f"--gres={gpus}",
        *limit,
        "--no-requeue",
        f"--export={_EXPORT}",
        f"--chdir={folder}",
        f"--output={escaped}/slurm-%j.log",
        "--open-mode=append",
        "--input=/dev/null",
    ]


def prepare(state: Path, settings: SlurmSettings, names: Sequence[str]) -> tuple[str, Path]:
    """Make the state folder; returns our identity in Slurm and the batch script.

    A part of the identity is random: the jobs of a folder that was lost count as external jobs. Raises ``InputError``
    for a node name that Slurm could read as several.
    """
    for name in names:
        if not _NAME.fullmatch(name):
            raise InputError("a node name of letters, digits, '.', '_' and '-'", field="nodes.name", value=name)
    (state / "jobs").mkdir(parents=True, exist_ok=True)
    script = state / "runner.py"
    _write(script, f"#!{settings.python} -I\n{Path(runner.__file__).read_text(encoding='utf-8')}")
    return make_identity(state, settings.cluster_id), script


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
