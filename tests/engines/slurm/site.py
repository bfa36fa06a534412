"""A real Slurm on this machine: one controller and three nodes with pretended GPUs, on loopback, without munge."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.engines.waiting import until
from tests.machine import which

NODES = {"n-1": "gpu:v100:2", "n-2": "gpu:v100:2", "spare": "gpu:1"}
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scancel", "scontrol")

CONF = """
ClusterName=commonwatt
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
PropagateResourceLimits=NONE
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
DefMemPerCPU=1
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
PriorityType=priority/basic
ReturnToService=2
SlurmdTimeout={slurmd_timeout_s}
MessageTimeout=6
KillWait=2
GresTypes=gpu
SlurmdParameters=config_overrides
SuspendProgram={folder}/suspend
ResumeProgram={folder}/resume
SlurmctldParameters=power_save_interval=1,power_save_min_interval=0
SuspendTime=31536000
SuspendTimeout=1
ResumeTimeout=60
SuspendRate=0
ResumeRate=0
FirstJobId={first_job}
Epilog={folder}/epilog
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

# What slurmctld starts has no open files, no PATH, and SIGTERM blocked: none of that may be handed on.
POWER = """#!{python} -I
import os, signal, subprocess, sys, time
def await_end(pid_file):  # a machine that is to start again is off first
    for _ in range(200):
        if not os.path.exists(pid_file) or not os.path.exists("/proc/" + open(pid_file).read().strip()):
            return
        time.sleep(0.05)
log = 0
while log < 3:
    log = os.open({folder!r} + "/power.log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
for number in range(3):
    os.dup2(log, number)
signal.pthread_sigmask(signal.SIG_SETMASK, [])
os.environ.update(SLURM_CONF={folder!r} + "/slurm.conf", PATH={path!r})
names = subprocess.run(["scontrol", "show", "hostnames", sys.argv[1]], stdout=subprocess.PIPE, text=True).stdout
for name in names.split():
    {action}
"""
EPILOG = """#!/bin/sh
while [ -e {folder}/hold ]; do /bin/sleep 0.05; done
"""
SUSPEND = 'os.kill(int(open({folder!r} + "/" + name + ".pid").read()), signal.SIGTERM)'
RESUME = 'await_end({folder!r} + "/" + name + ".pid"); subprocess.run(["slurmd", "-b", "-N", name])'


def missing() -> str:
    """Why there can be no Slurm here; empty if there can."""
    gone = [program for program in PROGRAMS if which("slurm", program, _path()) is None]
    return f"no {', '.join(gone)} on this machine: install Slurm" if gone else ""


class Site:
    """Its daemons are known by their process ids."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.conf = folder, folder / "slurm.conf"
        self.env = {**os.environ, "SLURM_CONF": str(self.conf), "PATH": _path()}
        self._ports = _free_ports(1 + len(NODES))
        self._shaken = False  # its controller was killed: it may count GPUs as used for ever that nobody has
        self._first_job = 1
        (folder / "state").mkdir()
        lines = []
        for name, gres in NODES.items():
            (folder / "spool" / name).mkdir(parents=True)
            kind, count = gres.split(":")[1:-1], int(gres[-1])
            devices = [folder / f"{name}-gpu{number}" for number in range(count)]
            for device in devices:
                device.symlink_to("/dev/null")  # a GPU has to be a device
            files = f"{folder}/{name}-gpu[0-{count - 1}]" if count > 1 else str(devices[0])
            lines.append(f"NodeName={name} Name=gpu {''.join(f'Type={t} ' for t in kind)}File={files}\n")
        (folder / "gres.conf").write_text("".join(lines))
        for name, action in (("suspend", SUSPEND), ("resume", RESUME)):
            script = POWER.format(
                python=sys.executable, folder=str(folder), path=_path(), action=action.format(folder=str(folder))
            )
            (folder / name).write_text(script)
            (folder / name).chmod(0o755)
        (folder / "epilog").write_text(EPILOG.format(folder=folder))
        (folder / "epilog").chmod(0o755)
        self.configure()

    def configure(self, slurmd_timeout_s: int = 30) -> None:
        """Write the configuration; a Slurm that runs is told by ``scontrol reconfigure``."""
        nodes = "\n".join(
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=4000 "
            f"Gres={gres} Feature=pretended"
            for port, (name, gres) in zip(self._ports[1:], NODES.items(), strict=True)
        )
        text = CONF.format(
            ports=self._ports, folder=self.folder, user=getpass.getuser(), nodes=nodes,
            slurmd_timeout_s=slurmd_timeout_s, first_job=self._first_job,
        )  # fmt: skip
        self.conf.write_text(text)

    def start(self) -> None:
        self.begin("slurmctld")
        for name in NODES:
            self.begin(name)
        self.settle()

    def begin(self, name: str, *options: str) -> None:
        """Start the controller, or the daemon of a node; returns when its process id is known.

        A controller that may have lost its memory goes on with numbers that are new: a node refuses a job if it knows
        one of the same number, and is drained for that.
        """
        if name == "slurmctld" and self._shaken:
            self._first_job += 10_000
            self.configure()
        program = ["slurmctld"] if name == "slurmctld" else ["slurmd", "-N", name]
        with (self.folder / "daemons.log").open("a") as log:
            subprocess.run([*program, *options], env=self.env, check=True, stdout=log, stderr=log, timeout=120)
        until(lambda: self.pid(name), 30.0)  # it is a daemon before it says so

    def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop a daemon by its process id, and wait until it is gone."""
        pid = self.pid(name)
        if name == "slurmctld" and number == signal.SIGKILL:
            self.shaken()
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            until(lambda: not _alive(pid))

    def hold(self, *, jobs: bool = True) -> None:
        """Have jobs that end go on leaving their nodes, as those with a long epilog do, or let them go."""
        if jobs:
            (self.folder / "hold").touch()
        else:
            (self.folder / "hold").unlink(missing_ok=True)

    def shaken(self) -> None:
        """Take note that the controller may have lost some of its memory."""
        self._shaken = True

    def pid(self, name: str) -> int | None:
        try:
            pid = int((self.folder / f"{name}.pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if _alive(pid) else None

    def ask(self, *command: str, **env: str) -> str:
        done = subprocess.run(
            command, env={**self.env, **env}, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def states(self) -> dict[str, str]:
        said = self.ask("sinfo", "--noheader", "--Node", "--Format=NodeList:|,StateComplete:|")
        return dict(line.split("|")[:2] for line in said.splitlines())

    def settle(self) -> None:
        """Everything as after the start: all daemons up, no jobs, all nodes idle."""
        self.hold(jobs=False)
        if self.pid("slurmctld") is None:
            self.begin("slurmctld")
        jobs = self.ask("squeue", "--noheader", "--format=%A").split()
        if jobs:
            subprocess.run(["scancel", *jobs], env=self.env, check=False, timeout=120)
        for name, state in self.states().items():
            if "power" in state:
                self.wake(name)
            elif self.pid(name) is None:
                self.begin(name)
            if "drain" in state or "down" in state.split("+")[0]:
                self.resume([name])
        until(self._idle)
        if self._shaken:
            self.end("slurmctld")
            self.begin("slurmctld", "-c")  # without what it remembers
            self._shaken = False
            until(self._idle)

    def _idle(self) -> bool:
        return set(self.states().values()) == {"idle"} and not self.ask("squeue", "--noheader").strip()

    def wake(self, name: str) -> None:
        """Have a node come up, told again if need be; by hand, if it was put to sleep later than it was woken."""
        until(lambda: "powering_down" not in self.states()[name])
        by_hand_s = time.monotonic() + 10.0

        def up() -> bool:
            state = self.states()[name]
            if "powered_down" in state and "powering_up" not in state:
                self.ask("scontrol", "update", f"NodeName={name}", "State=POWER_UP")
            elif "powering_up" in state and self.pid(name) is None and time.monotonic() > by_hand_s:
                self.begin(name, "-b")
            elif state.endswith("+power_up") and time.monotonic() > by_hand_s:  # told twice
                self.ask("scontrol", "update", f"NodeName={name}", "State=POWER_DOWN_ASAP")
            return "power" not in state

        until(up, pause_s=0.5)

    def drained_by_slurm(self) -> list[str]:
        """Nodes that refused a job because they know one of its number, which the controller forgot."""
        said = self.ask("sinfo", "--noheader", "--Node", "--format=%N|%E").splitlines()
        return [name for name, _, reason in (line.partition("|") for line in said) if reason == "Duplicate jobid"]

    def resume(self, names: list[str]) -> None:
        """Do what an administrator would."""
        for name in names:
            subprocess.run(
                ["scontrol", "update", f"NodeName={name}", "State=RESUME"],
                env=self.env, check=False, timeout=120, capture_output=True,
            )  # fmt: skip

    def stop(self) -> None:
        for name in ("slurmctld", *NODES):
            with suppress(AssertionError):
                self.end(name)
            self.end(name, signal.SIGKILL)


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports
