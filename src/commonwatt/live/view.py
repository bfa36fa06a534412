"""Keeps the board up to date from what each tick writes down."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from commonwatt.control.engine import NodeView
from commonwatt.live.board import Board, BoardJob, BoardNode
from commonwatt.live.outlook import LONGEST, Waiting, expected_times
from commonwatt.live.session import Session
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.store.records import ACTIVE, JobRow, JobStatus, SampleRow
from commonwatt.store.texts import cleaned_column
from commonwatt.store.ticks import Tick

__all__ = ["View"]

_COLUMNS = (
    "status", "held", "nodes", "done_epochs", "kept_epochs", "reason", "sentence", "expected_start_s", "expected_end_s",
)  # fmt: skip
_ROW = tuple(column.name for column in fields(JobRow))

_FEW = 500
_PAUSE_S, _FOR_EACH_S = 5.0, 5e-4
"""Between projections of when jobs begin, and looks at how far they are, where there are more than a few; the more
jobs, the longer."""


class View:
    """What a session is like from outside."""

    def __init__(self, session: Session, rows: Sequence[JobRow]) -> None:
        self._session = session
        self._jobs = {row.id: _job(row) for row in rows}
        self._rows = {row.id: row for row in rows}
        self._projected_s = self._progress_s = -math.inf
        self._progress: dict[int, float] = {}
        self._drawn: tuple[object, tuple[BoardNode, ...]] = (None, ())  # nodes, and what they were drawn from

    def apply(self, tick: Tick) -> None:
        """Take over what *tick* changed."""
        entered, self._session.entered = self._session.entered, []
        for row in entered:
            self._rows[row.id] = row
            self._jobs.setdefault(row.id, _job(row))
        for job_id, written in tick.jobs.items():
            if job_id not in self._jobs:
                continue
            columns = {name: cleaned_column(name, value) for name, value in written.items()}
            self._rows[job_id] = _changed(self._rows[job_id], columns)
            changed = {name: columns[name] for name in _COLUMNS if name in columns}
            if "nodes" in changed:
                changed["nodes"] = tuple(changed["nodes"])
                changed["gpus"] = len(changed["nodes"]) * columns["gpus_per_node"] if "gpus_per_node" in columns else 0
            if changed.get("status") == JobStatus.WAITING or (
                changed.get("held") and self._jobs[job_id].status == JobStatus.WAITING
            ):
                changed |= {"expected_start_s": None, "expected_end_s": None}  # until they are projected anew
            job = replace(self._jobs[job_id], **changed)
            if job.status in ACTIVE:
                self._jobs[job_id] = job
            else:
                del self._jobs[job_id], self._rows[job_id]
        self._progress = tick.progress

    def board(self, last: Board, now_s: float, sample: SampleRow | None) -> Board:
        """Return the board as of *now_s*."""
        session = self._session
        pause_s = _PAUSE_S + _FOR_EACH_S * len(self._jobs)
        if sample is not None and (len(self._jobs) < _FEW or now_s >= self._projected_s + pause_s):
            self._projected_s = now_s
            self._project(now_s)
        if len(self._progress) < _FEW or now_s >= self._progress_s + pause_s:
            self._progress_s = now_s
            self._get_on()
        jobs = dict(self._jobs)
        nodes = self._nodes()
        running = sum(job.status == "running" for job in jobs.values())
        return replace(
            last,
            time_s=now_s,
            mode=session.mode,
            nodes=nodes,
            jobs=jobs,
            rows=dict(self._rows),
            power_w=session.controller.engine.power_w(),
            busy_gpus=sum(node.held_gpus for node in nodes),
            total_gpus=session.controller.cluster.total_gpus,
            running=running,
            waiting=len(jobs) - running,
            tick_s=last.tick_s if sample is None else sample.tick_s,
            ticks=last.ticks + (sample is not None),
            decided_s=last.decided_s if sample is None else now_s,
        )

    def _get_on(self) -> None:
        """Take over how far running jobs are."""
        for job_id, done_epochs in self._progress.items():
            job = self._jobs.get(job_id)
            if job is not None and job.status == "running" and job.done_epochs != done_epochs:
                self._jobs[job_id] = replace(job, done_epochs=done_epochs)

    def _nodes(self) -> tuple[BoardNode, ...]:
        """Return the nodes, as they were drawn before if nothing about them has changed."""
        session = self._session
        book, view = session.controller.book, session.durable.nodes()
        rows = book.job("row")[np.fromiter(book.nodes, dtype=np.int64)]
        figures = (rows, book.row("gpu_w")[rows], view.power_state, view.usable_gpus, view.wait_s, _up(view))
        seen = (dict(book.nodes), list(session.drained), tuple(column.tobytes() for column in figures))
        if seen != self._drawn[0]:
            self._drawn = (seen, self._draw(view))
        return self._drawn[1]

    def _draw(self, view: NodeView) -> tuple[BoardNode, ...]:
        session = self._session
        cluster, book = session.controller.cluster, session.controller.book
        jobs: list[list[int]] = [[] for _ in cluster.names]
        held = np.zeros(len(cluster), dtype=np.int64)
        busy_w = np.zeros(len(cluster))
        for handle, nodes in book.nodes.items():
            row = int(book.job("row")[handle])
            each = int(book.row("per_node")[row])
            for n in nodes:
                jobs[n].append(session.durable.jobs[handle].id)
                held[n] += each
                busy_w[n] += each * float(book.row("gpu_w")[row])
        drained, up = set(session.drained), _up(view)
        found = []
        for n, name in enumerate(cluster.names):
            kind, state = cluster.classes[cluster.klass[n]], int(view.power_state[n])
            usable = int(view.usable_gpus[n])
            where = "asleep" if state >= 0 else "waking" if view.wait_s[n] > 0 else "on" if up[n] else "down"
            power_w = kind.states[state].power_w if state >= 0 else kind.idle_w + float(busy_w[n])
            found.append(
                BoardNode(
                    name, kind.gpu_type, kind.gpus, usable, int(held[n]), where, name in drained, tuple(jobs[n]),
                    None if where == "down" else power_w,
                )
            )  # fmt: skip
        return tuple(found)

    def _project(self, now_s: float) -> None:
        """Say of waiting jobs when they are expected to begin and to end."""
        session = self._session
        controller, book = session.controller, session.controller.book
        free = [0] * len(controller.cluster.classes)
        view = session.durable.nodes()
        shut = controller.drained | controller.set_aside
        for n, klass in enumerate(controller.cluster.klass.tolist()):
            free[klass] += 0 if n in shut else int(view.usable_gpus[n])
        ends = []
        for handle, nodes in book.nodes.items():
            if handle in controller.aside:
                continue
            row = int(book.job("row")[handle])
            open_nodes = sum(n not in shut for n in nodes)  # what is given free elsewhere is not to be had
            klass, gpus = int(book.row("klass")[row]), open_nodes * int(book.row("per_node")[row])
            free[klass] -= gpus
            job = self._jobs.get(session.durable.jobs[handle].id)
            end_s = None if job is None else job.expected_end_s
            ends.append((now_s if end_s is None else end_s, klass, gpus))
        expected = expected_times(now_s, [max(0, f) for f in free], ends, self._waiting())
        for handle, (begin_s, end_s) in expected.items():
            job_id = session.durable.jobs[handle].id
            if job_id in self._jobs:
                self._jobs[job_id] = replace(self._jobs[job_id], expected_start_s=begin_s, expected_end_s=end_s)

    def _waiting(self) -> list[Waiting]:
        """Waiting jobs to be projected: those that press most, by due date less shortest run time."""
        book = self._session.controller.book
        handles = np.array(sorted(book.active - book.nodes.keys() - self._session.held), dtype=np.int64)
        if not len(handles):
            return []
        shortest_s = np.minimum.reduceat(book.row("time_s"), book.job("first"))[handles] * self._left(handles)
        pressure = book.job("due_s")[handles] - shortest_s
        order = np.lexsort((handles, pressure))[:LONGEST]
        handles, pressure = handles[order], pressure[order]
        count = book.job("count")[handles]
        starts = np.cumsum(count) - count
        rows = np.arange(int(count.sum())) + np.repeat(book.job("first")[handles] - starts, count)
        gpus = book.row("width")[rows] * book.row("per_node")[rows]
        times_s = book.row("time_s")[rows] * np.repeat(self._left(handles), count)
        ways = list(zip(book.row("klass")[rows].tolist(), gpus.tolist(), times_s.tolist(), strict=True))
        return [
            Waiting(handle, press, ways[start : start + number])
            for handle, press, start, number in zip(
                handles.tolist(), pressure.tolist(), starts.tolist(), count.tolist(), strict=True
            )
        ]

    def _left(self, handles: Ints) -> Floats:
        """Part of each job's epochs that is still to be done. Shape [J]."""
        jobs = self._session.durable.jobs
        kept = np.array([jobs[handle].kept_epochs for handle in handles.tolist()])
        return 1.0 - np.minimum(1.0, kept / self._session.controller.book.job("epochs")[handles])


def _up(view: NodeView) -> Bools:
    """Which nodes are not down. Shape [N]."""
    return view.usable_gpus > 0 if view.up is None else view.up


def _changed(row: JobRow, columns: Mapping[str, Any]) -> JobRow:
    known = {name: columns[name] for name in _ROW if name in columns}
    if "nodes" in known:
        known["nodes"] = tuple(known["nodes"])
    return replace(row, **known)


def _job(row: JobRow) -> BoardJob:
    return BoardJob(
        row.id, row.status, row.held, row.nodes, row.gpus, row.done_epochs, row.kept_epochs, row.reason, row.sentence,
        row.expected_start_s, row.expected_end_s,
    )  # fmt: skip
