"""The work of a job, the spec of one of its runs, and the site's command for container images.

A template for images is a list of arguments; no shell reads it. ``{command}`` stands alone and becomes the arguments of
the job's command; ``{image}``, ``{folder}`` (the job's working directory), ``{snapshots}`` (where it keeps them) and
``{own}`` (where its progress file is) may be parts of an argument::

    apptainer exec --nv --pwd {folder} --bind {own} --bind {snapshots} {image} {command}
    srun --export=ALL --container-image={image} --container-mounts={own},{snapshots} {command}
    docker run --rm --gpus all --env CUDA_VISIBLE_DEVICES --volume {own}:{own} {image} {command}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from commonwatt.model.errors import EngineError, InputError
from commonwatt.model.job_file import ScriptSpec, check_image

__all__ = ["Images", "JobWork", "RunSpec", "mark_of"]

_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_PLACEHOLDERS = frozenset({"image", "command", "folder", "snapshots", "own"})


@dataclass(frozen=True)
class JobWork:
    """The work of a job, whatever engine runs it.

    Attributes
    ----------
    command
        Program and arguments; no shell reads them.
    folder
        Its working directory; the engine's own folder for the job if not given.
    epochs
        Epochs it has done when it completes.
    environment
        Variables it gets beside those of the engine.
    snapshots
        Where it keeps its checkpoints; the engine's own folder for the job if not given.
    image
        Container image it runs in, by the site's runtime; none if not given.
    time_limit_s
        Longest time one run of it may take; seconds, unlimited if not given.
    output_bytes, reserve_bytes
        Most output that is kept of a run, unlimited if not given; and the space to leave free where it is kept.
    files_bytes
        Most space that the files in its own folder may take, unlimited if not given.
    mark
        Tells it from another job of the same number, where a store is older than the engine's records.
    batch
        Script that runs in place of the command, which then has its name and arguments.
    partition
        Partitions of Slurm it may run in, with commas between them; "" for the site's.
    constraint
        Features of nodes that it asks of Slurm; "" for none.
    user
        Unix user it runs as; that of this process if not given.
    options
        Options of ``sbatch`` that the site sets for its tenant, such as the account.
    cpus_per_gpu, memory_gib_per_gpu
        What it needs for each GPU; what the site gives if not given.
    workload
        Namespace, name and uid of the Job of Kubernetes that is the work, if there is one: ``command`` is not run then.
    """

    command: tuple[str, ...]
    folder: Path | None = None
    epochs: float = 1.0
    environment: Mapping[str, str] = field(default_factory=dict)
    snapshots: Path | None = None
    image: str | None = None
    time_limit_s: float | None = None
    mark: str = ""
    output_bytes: int | None = None
    files_bytes: int | None = None
    reserve_bytes: int = 0
    batch: ScriptSpec | None = None
    partition: str = ""
    constraint: str = ""
    user: str | None = None
    options: tuple[str, ...] = ()
    cpus_per_gpu: float | None = None
    memory_gib_per_gpu: float | None = None
    workload: tuple[str, ...] = ()


def mark_of(submit_s: float) -> str:
    """Return the mark of a job submitted at *submit_s*, seconds since 1970."""
    return f"{submit_s:.3f}"


@dataclass(frozen=True)
class RunSpec:
    """All a runner needs to know of one run."""

    handle: int
    attempt: int
    name: str
    nodes: tuple[int, ...]
    gpus_per_node: int
    slots: tuple[tuple[int, ...], ...]  # of each node
    started_s: float
    base_epochs: float
    command: tuple[str, ...]
    folder: str  # the job's working directory
    environment: dict[str, str]
    grace_s: float
    limit_s: float | None = None  # longest time it may run
    lock: str | None = None  # a file that one run of the job locks at a time: a run waits until the one before is gone
    look_s: float | None = None  # how often to check whether the run was given up
    node_names: tuple[str, ...] = ()  # identify the nodes when the configuration has changed
    epochs: float | None = None  # of the job
    mark: str = ""  # of its ``JobWork``
    output_bytes: int | None = None  # most output to keep: the end of it
    files_bytes: int | None = None  # most space that files in ``files_folder`` may take
    files_folder: str = ""
    reserve_bytes: int = 0  # space to leave free where the output is
    user: str | None = None  # it runs as; the runner's own if not given
    apart: bool = False  # whether its runner, too, is that user's, and so works in a folder of that user
    options: tuple[str, ...] = ()  # of ``sbatch``, where the engine submits there
    cpus: float | None = None  # on each node, where the job says so
    memory_gib: float | None = None  # on each node, where the job says so
    fence: str = ""  # of the controller that ordered it
    fence_file: str | None = None  # it begins only while this file has that text, or does not exist
    image: str | None = None  # of its ``JobWork``
    locks: tuple[str, ...] = ()  # further files to lock, of parts of earlier runs
    gpu_w: float | None = None  # power of each of its GPUs, if that is not the node's
    workload: tuple[str, ...] = ()  # of its ``JobWork``
    echo: bool = False  # whether the runner prints what the job prints, too

    def placed(self, names: Sequence[str]) -> RunSpec:
        """Return the spec with nodes by their index in *names*; with no nodes, if one of them is not there."""
        if not self.node_names:
            return self
        at = {name: n for n, name in enumerate(names)}
        there = all(name in at for name in self.node_names)
        return replace(
            self,
            nodes=tuple(at[name] for name in self.node_names) if there else (),
            slots=self.slots if there else (),
        )


class Images:
    """How this site runs a job in an image.

    Parameters
    ----------
    template
        Arguments of the runtime, with placeholders as above; none if jobs cannot name images here.

    Raises
    ------
    InputError
        For a template without ``{image}`` or a ``{command}`` that stands alone, or with another placeholder.
    """

    def __init__(self, template: Sequence[str] = ()) -> None:
        self._template = tuple(template)
        if not self._template:
            return
        for argument in self._template:
            for place in _PLACEHOLDER.findall(argument):
                if place not in _PLACEHOLDERS:
                    raise InputError(f"one of {{{'}, {'.join(sorted(_PLACEHOLDERS))}}}", field="images", value=argument)
        joined = "\0".join(self._template)
        if "{image}" not in joined or self._template.count("{command}") != 1 or joined.count("{command}") != 1:
            expected = "arguments with {image} in one and {command} as one of its own"
            raise InputError(expected, field="images", value=" ".join(self._template))
        if _PLACEHOLDER.search(self._template[0]):
            raise InputError("a program first", field="images", value=self._template[0])

    def command(self, work: JobWork, places: Mapping[str, str]) -> tuple[str, ...]:
        """Return the arguments that run *work*; *places* has the paths of ``snapshots`` and ``own``.

        Raises ``EngineError`` if it names an image and this site runs none, or an invalid image.
        """
        if work.image is None:
            return work.command
        if not self._template:
            msg = f"image {work.image}: this engine has no command that runs images"
            raise EngineError(msg)
        try:
            values = {**places, "folder": str(work.folder), "image": check_image(work.image)}
        except InputError as error:
            raise EngineError(str(error)) from error
        arguments: list[str] = []
        for argument in self._template:
            if argument == "{command}":
                arguments += work.command
            else:
                arguments.append(_PLACEHOLDER.sub(lambda place: values[place[1]], argument))
        return tuple(arguments)
