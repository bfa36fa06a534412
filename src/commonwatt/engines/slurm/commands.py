"""Slurm's client programs: argument lists, never a shell; each with a timeout and an error that says what failed."""

from __future__ import annotations

import os
import pwd
import secrets
import subprocess
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

from commonwatt.engines.slurm.parsing import (
    JOB_FIELDS,
    NODE_FIELDS,
    SlurmJob,
    SlurmNode,
    jobs_of_json,
    jobs_of_text,
    nodes_of_json,
    nodes_of_text,
)
from commonwatt.model.errors import EngineDownError, EngineError

__all__ = ["Slurm"]

_T = TypeVar("_T", SlurmJob, SlurmNode)

_SILENCE = (
    "unable to contact slurm controller", "connect failure", "socket timed out", "zero bytes were transmitted",
    "connection refused", "communication connection failure", "communication shutdown", "controller not responding",
    "unexpected message received", "slurm_receive_msg", "unable to establish", "slurm backup controller in standby",
)  # fmt: skip
_FORGET = ("SBATCH_", "SCANCEL_", "SINFO_", "SLURM_", "SQUEUE_")


def variables_of(user: str) -> dict[str, str]:
    """Return the variables by which programs know their *user*; raises ``EngineError`` for one unknown here."""
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        msg = f"there is no user {user} on this machine"
        raise EngineError(msg) from None
    return {"HOME": account.pw_dir, "USER": user, "LOGNAME": user, "SHELL": account.pw_shell}


class Slurm:
    """The client programs of one Slurm.

    Parameters
    ----------
    conf
        Its ``slurm.conf``; the default one of this machine if not given.
    timeout_s
        Longest time of one command.
    use_json
        Whether to ask for JSON first; without it, only plain output is read.
    guard
        Raises where another controller may have taken over: called right before each command that changes anything.
    """

    def __init__(
        self, conf: Path | None = None, *, timeout_s: float = 30.0, use_json: bool = True,
        guard: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._timeout_s, self._guard = timeout_s, guard
        self._json = {"squeue": use_json, "sinfo": use_json, "scontrol": use_json}
        # neither options in the environment, nor the job we may run inside of, may change the commands
        self._env = {k: v for k, v in os.environ.items() if not k.startswith(_FORGET) or k == "SLURM_CONF"}
        self._env["SLURM_BITSTR_LEN"] = "0"  # lists of the tasks of an array are not cut off
        if conf is not None:
            self._env["SLURM_CONF"] = str(conf)

    # -- queries

    def ping(self) -> None:
        """Raise ``EngineDownError`` if no controller answers: any other command would retry for a while."""
        output = self._run("scontrol", "ping").stdout.decode(errors="replace")
        if "is DOWN" in output and "is UP" not in output:
            msg = f"slurmctld does not answer ({' '.join(output.split())[:80]})"
            raise EngineDownError(msg)

    def jobs(self, users: Collection[str] | None = None, *, plain: bool = False) -> list[SlurmJob]:
        """Return the jobs of *users*, or of everybody, that Slurm has; also those that ended within its ``MinJobAge``.

        With *plain*, JSON is not asked for. Raises ``EngineDownError`` on an answer that cannot be read.

        The JSON of Slurm 22.05 has everybody's jobs in any case, which takes time. Without ``--all``, jobs of a hidden
        partition are left out, even for their owner.
        """
        of = ["--states=all", "--all", *([] if users is None else [f"--user={','.join(sorted(users))}"])]
        jobs = None if plain else self._ask_json(("squeue", *of, "--json"), jobs_of_json)
        if jobs is None:
            mark = secrets.token_hex(4)
            command = ("squeue", *of, f"--format={mark}|{JOB_FIELDS}")
            jobs = self._ask_text(command, lambda text: jobs_of_text(text, mark))
        return [job for job in jobs if users is None or job.user in users]

    def has(self, job: int) -> bool:
        """Whether Slurm has a job of that number; only a plain no counts as one (else ``EngineDownError``)."""
        done = self._run("scontrol", "--oneliner", "show", "job", str(job))
        output, errors = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if done.returncode == 0 and output.startswith(f"JobId={job} "):
            return True
        if done.returncode and "Invalid job id specified" in errors:
            return False
        msg = f"scontrol: its answer about job {job} cannot be read: {' '.join((errors or output).split())[:80]!r}"
        raise EngineDownError(msg)

    def nodes(self, *, plain: bool = False) -> list[SlurmNode]:
        """Return all nodes of Slurm; *plain* and errors as for ``jobs``."""
        nodes = None if plain else self._ask_json(("sinfo", "--json"), nodes_of_json)
        if nodes is None and not plain:  # since 23.11, they are there
            nodes = self._ask_json(("scontrol", "show", "nodes", "--json"), nodes_of_json)
        if nodes is not None:
            return nodes
        return self._ask_text(("sinfo", "--all", "--Node", f"--Format={NODE_FIELDS}"), nodes_of_text)

    def reasons(self) -> dict[str, str]:
        """Return the reason of each node's state, by name, as it was set."""
        mark = secrets.token_hex(4)  # a reason may contain anything, even what looks like a further line
        output = self.run("sinfo", "--noheader", "--Node", "--all", f"--format={mark}|%N|%E")
        rows = (line.split("|", 2) for line in output.splitlines() if line.startswith(f"{mark}|"))
        return {row[1]: row[2] for row in rows if len(row) == 3}

    # -- commands

    def submit(self, options: Sequence[str], script: Path, argument: str, user: str | None = None) -> int:
        """Submit *script*; returns the id of the job. What it is given of the environment is that of *user*."""
        self._guard()
        own = {} if user is None else variables_of(user)
        output = self.run("sbatch", "--parsable", *options, "--", str(script), argument, **own)
        number = output.strip().partition(";")[0]
        if not number.isdigit():
            msg = f"sbatch: its answer is not a job id: {output.strip()[:80]!r}"
            raise EngineDownError(msg)
        return int(number)

    def terminate(self, jobs: Sequence[int]) -> None:
        """Send SIGTERM to the batch scripts of *jobs*; those that are gone, or do not run yet, do not get it."""
        self._run_lenient("scancel", "--signal=TERM", "--batch", *map(str, jobs))

    def cancel(self, jobs: Sequence[int]) -> None:
        """Cancel *jobs*; Slurm kills them after its ``KillWait`` if need be."""
        self._run_lenient("scancel", *map(str, jobs))

    def update_node(self, name: str, state: str | None, reason: str | None = None) -> None:
        """Change the state of a node, or its reason; requires an operator of Slurm."""
        self._guard()
        changed = {"State": state, "Reason": reason}
        output = [f"{key}={value}" for key, value in changed.items() if value is not None]
        self.run("scontrol", "update", f"NodeName={name}", *output)

    # -- running programs

    def run(self, program: str, *arguments: str, **variables: str) -> str:
        """Run a client program, with further *variables*; returns what it printed.

        Raises ``EngineDownError`` if the controller does not answer: the command may have been carried out, or not.
        Raises ``EngineError`` if it refuses, or if there is no such program.
        """
        done = self._run(program, *arguments, **variables)
        if done.returncode:
            output = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
            words = " ".join(output.split()).removeprefix(f"{program}: ").removeprefix("error: ")[:300]
            if any(sign in output.lower() for sign in _SILENCE):
                msg = f"{program}: slurmctld does not answer ({words})"
                raise EngineDownError(msg)
            msg = f"{program}: {words}"
            raise EngineError(msg)
        return done.stdout.decode(errors="replace")

    def _run(self, program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(  # noqa: S603
                [program, *arguments], env={**self._env, **variables}, stdin=subprocess.DEVNULL, capture_output=True,
                timeout=self._timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            msg = f"{program}: no answer within {self._timeout_s:g} s; is slurmctld running?"
            raise EngineDownError(msg) from error
        except (OSError, ValueError) as error:
            msg = f"{program} cannot be run: {error}"
            raise EngineError(msg) from error

    def _ask_json(self, command: Sequence[str], read: Callable[[str], list[_T]]) -> list[_T] | None:
        """Ask for JSON; ``None`` if there is none, where plain output may help."""
        if not self._json[command[0]]:
            return None
        try:
            return read(self.run(*command))
        except EngineDownError:
            raise
        except EngineError as error:
            if "option" in str(error):  # this version has no JSON
                self._json[command[0]] = False
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def _ask_text(self, command: Sequence[str], read: Callable[[str], list[_T]]) -> list[_T]:
        """Ask for plain output; one that cannot be read, whatever the exit code says, is no answer."""
        try:
            return read(self.run(*command))
        except ValueError as error:
            msg = f"{command[0]}: its answer cannot be read: {error}"
            raise EngineDownError(msg) from error

    def _run_lenient(self, program: str, *arguments: str) -> None:
        self._guard()
        try:
            self.run(program, *arguments)
        except EngineDownError:
            raise
        except EngineError:  # it is over already, or cannot be signalled yet: the caller looks again
            return
