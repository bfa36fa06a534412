"""The problem and a candidate schedule as the compiled loops read them: arrays of records.

Nodes of one class are kept in lists by *room*: the GPUs that are free and not claimed by a running job whose
turn has not come. Taking the node with the least sufficient room (best fit) is then a short scan.

Few arrays of records instead of many arrays: the loops then touch few cache lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from commonwatt.model.arrays import Floats, Ints
from commonwatt.optimize import njit, ranked
from commonwatt.placement._problem import PlacementProblem, Schedule

__all__ = [
    "JOB", "NODE", "ROW", "Candidate", "Record", "Records", "can_stay", "change", "copy", "end_s", "ends_first", "give",
    "keep", "pick", "prepare", "reset", "set_first", "tardiness", "withdraw_claim",
]  # fmt: skip

Records = NDArray[Any]  # an array of records
Record = Any  # one of them

JOB = np.dtype(
    [
        ("first", "i8"),  # its rows are first to last, D*_j (in time) by cost, then the others by time
        ("last", "i8"),
        ("in_time", "i8"),  # |D*_j|
        ("stay", "i8"),  # its row that stays where it runs, or -1
        ("stay_first", "i8"),  # nodes it runs on: stay_nodes[stay_first:stay_last]
        ("stay_last", "i8"),
        ("slot", "i8"),  # where its nodes begin in ``given``
        ("choice", "i8"),  # row it was given, or -1
        ("slack_s", "f8"),  # d_j - T_c
        ("weight", "f8"),  # omega_j
        ("postponed", "f8"),  # cost of postponing it
    ]
)
MOST_OUTCOMES = 16
# of a job whose run time is not certain: how many times are possible, and each relative to the expected one, less 1
# in front, as Numba takes a record that begins like another for one of its kind
UNCERTAIN_JOB = np.dtype([("outcomes", "i8"), ("spread", "f8", (MOST_OUTCOMES,)), *JOB.descr])
ROW = np.dtype(
    [
        ("klass", "i4"),
        ("width", "i4"),
        ("per_node", "i4"),
        ("asked", "i2"),  # whether the job's owner asked for it
        ("like_stay", "i2"),  # whether a running job has this shape and power limit now
        ("origin", "i8"),  # row in the problem
        ("time_s", "f8"),
        ("node_cost", "f8"),
        ("power_limit", "f8"),
        ("chance", "f8"),  # running sum of weights among the rows a random choice is made from
    ]
)
NODE = np.dtype(
    [
        ("klass", "i4"),
        ("free", "i4"),  # GPUs nobody was given
        ("claimed", "i4"),  # GPUs of running jobs whose turn has not come
        ("room", "i4"),  # max(0, free - claimed): the list the node is in
        ("after", "i4"),
        ("before", "i4"),
        ("gpus", "i4"),  # GPUs that may be used
        ("first_job", "i4"),  # its first-ending job so far
        ("first_end_s", "f8"),
        ("first_cost", "f8"),
        ("wait_s", "f8"),
        ("origin", "i8"),  # node in the problem
        ("at_first", "i4", (4,)),  # claimed, room, after and before when nothing is given to anybody
    ]
)


class Candidate(NamedTuple):
    """One candidate schedule, and everything needed to build it.

    Compiled loops take it as one argument and unpack it once: Numba counts references whenever an array is taken out
    of a tuple, which would cost what is called in them half its speed.
    """

    jobs: Records  # [J] of JOB
    rows: Records  # [C] of ROW
    nodes: Records  # [N] of NODE
    lists: Ints  # [4, K, levels]: head of the list of each room; number of nodes by free GPUs; both at first
    stay_nodes: Ints  # nodes of running jobs
    given: Ints  # nodes given to each job
    picked: Ints  # [largest width] nodes found by the last search
    node_order: Ints  # [N] nodes, those to take first last

    def schedule(self, choice: Ints, given: Ints) -> Schedule:
        """Translate rows back to those of the problem."""
        chosen = np.where(choice >= 0, self.rows["origin"][choice], -1) if len(self.rows) else choice.copy()
        where = given.copy()
        where[given >= 0] = self.nodes["origin"][given[given >= 0]]
        return Schedule(chosen, where)

    def rows_of(self, choice: Ints) -> Ints:
        """Translate rows of the problem to those of ``rows``."""
        here = np.empty(len(self.rows), dtype=np.int64)
        here[self.rows["origin"]] = np.arange(len(self.rows))
        return np.where(choice >= 0, here[choice], -1) if len(here) else choice.copy()


def prepare(problem: PlacementProblem, *, reachable: bool = False) -> Candidate:
    """Compile *problem* for the loops.

    With *reachable*, and where no job runs, nodes that no placement of the jobs can reach are left out: nodes are taken
    from the head of their list, so of equal ones no more are needed than the jobs can take together. The time for a few
    jobs then does not grow with the cluster.
    """
    jobs = np.zeros(len(problem), JOB if problem.outcomes is None else UNCERTAIN_JOB)
    jobs["first"], jobs["last"] = problem.start[:-1], problem.start[1:]
    jobs["stay_first"], jobs["stay_last"] = problem.stay_start[:-1], problem.stay_start[1:]
    jobs["slot"] = problem.slot_start[:-1]
    jobs["stay"] = problem.stay
    jobs["choice"] = -1
    jobs["slack_s"] = problem.due_s - problem.now_s
    jobs["weight"] = problem.weight
    jobs["postponed"] = problem.postponed_cost
    if problem.outcomes is not None:
        if problem.outcomes.shape[1] > MOST_OUTCOMES:
            msg = f"outcomes: got {problem.outcomes.shape[1]} of each job, expected at most {MOST_OUTCOMES}"
            raise ValueError(msg)
        jobs["outcomes"] = count = problem.outcomes.shape[1]
        jobs["spread"][:, :count] = problem.outcomes - 1.0
    written = np.zeros(len(problem.time_s), ROW)
    for name in ("klass", "width", "per_node", "time_s", "node_cost", "asked"):
        written[name] = getattr(problem, name)
    written["power_limit"] = problem.limits
    written["origin"] = np.arange(len(written))
    rows = np.zeros_like(written)
    _sort_rows(jobs, written, rows)
    lists = np.zeros((4, len(problem.class_gpus), int(problem.class_gpus.max()) + 1), dtype=np.int64)
    order, most = _first_last(problem.node_wait_s), int(problem.slot_start[-1])
    if reachable and not len(problem.stay_nodes) and most * lists[0].size < len(order):
        kept = _reachable(problem.node_class, problem.node_gpus, order, most, lists)
        order = np.arange(len(kept))[::-1]
    else:
        kept = np.arange(len(order))
    nodes = np.zeros(len(kept), NODE)
    nodes["klass"], nodes["gpus"] = problem.node_class[kept], problem.node_gpus[kept]
    nodes["wait_s"], nodes["origin"] = problem.node_wait_s[kept], kept
    c = Candidate(
        jobs=jobs,
        rows=rows,
        nodes=nodes,
        lists=lists,
        stay_nodes=problem.stay_nodes,
        given=np.full(int(problem.slot_start[-1]), -1, dtype=np.int64),
        picked=np.zeros(int(problem.width.max(initial=1)), dtype=np.int64),
        node_order=np.ascontiguousarray(order),
    )
    _link_all(c)
    return c


def _first_last(wait_s: Floats) -> Ints:
    """Nodes, those to take first last, [N]."""
    return (ranked(wait_s) if wait_s.any() else np.arange(len(wait_s)))[::-1]


@njit(cache=True, nogil=True)
def _reachable(klass: Ints, gpus: Ints, order: Ints, most: int, lists: Ints) -> Ints:
    """Nodes with GPUs, those to take first first, at most so many of each class and number; counts those left out."""
    kept = np.empty(len(order), dtype=np.int64)
    count = 0
    lists[0] = 0
    for i in range(len(order) - 1, -1, -1):
        n = order[i]
        if gpus[n] > 0 and lists[0, klass[n], gpus[n]] < most:
            lists[0, klass[n], gpus[n]] += 1
            kept[count] = n
            count += 1
        else:
            lists[3, klass[n], gpus[n]] += 1
    return kept[:count].copy()


@njit(cache=True, nogil=True)
def _sort_rows(jobs: Records, written: Records, rows: Records) -> None:
    """Copy the rows of each job in their order of preference, by insertion: a job has a handful of rows."""
    for job in jobs:
        lo, hi = job.first, job.last
        meets = 0
        for late in range(2):
            base = lo + meets * late
            count = 0
            for r in range(lo, hi):
                if (written[r].time_s >= job.slack_s) != (late == 1):
                    continue
                key = _key(written[r], late)
                k = base + count
                while k > base and (
                    _key(rows[k - 1], late) > key or (written[r].origin == job.stay and _key(rows[k - 1], late) == key)
                ):
                    rows[k] = rows[k - 1]
                    k -= 1
                rows[k] = written[r]
                count += 1
            if late == 0:
                meets = count
        job.in_time = meets
        stay = job.stay
        for r in range(lo, hi):
            rows[r].like_stay = stay >= 0 and (
                rows[r].klass == written[stay].klass
                and rows[r].width == written[stay].width
                and rows[r].per_node == written[stay].per_node
                and rows[r].power_limit == written[stay].power_limit
            )
        total = 0.0
        late = 0 if meets > 0 else 1
        among = meets if meets > 0 else hi - lo
        for r in range(lo, hi):
            if rows[r].origin == stay:
                job.stay = r
            if r < lo + among:
                total += 1.0 / max(_key(rows[r], late), 1e-300)
                rows[r].chance = total


@njit(cache=True, nogil=True)
def _key(row: Record, late: int) -> float:
    return row.time_s if late else row.node_cost * row.width


@njit(cache=True, nogil=True)
def _link(nodes: Records, heads: Ints, klass: int, room: int, n: int) -> None:
    old = heads[klass, room]
    nodes[n].after = old
    nodes[n].before = -1
    if old >= 0:
        nodes[old].before = n
    heads[klass, room] = n


@njit(cache=True, nogil=True)
def _unlink(nodes: Records, heads: Ints, klass: int, room: int, n: int) -> None:
    ahead, behind = nodes[n].before, nodes[n].after
    if ahead >= 0:
        nodes[ahead].after = behind
    else:
        heads[klass, room] = behind
    if behind >= 0:
        nodes[behind].before = ahead


@njit(cache=True, nogil=True)
def reset(c: Candidate) -> None:
    """Give nothing to anybody; every running job claims what is allocated to it."""
    _, _, nodes, lists, _, _, _, _ = c
    lists[:2] = lists[2:]
    for node in nodes:
        node.free = node.gpus
        node.claimed, node.room = node.at_first[0], node.at_first[1]
        node.after, node.before = node.at_first[2], node.at_first[3]
        set_first(node, -1, np.inf, 0.0)


@njit(cache=True, nogil=True)
def _link_all(c: Candidate) -> None:
    """Put all nodes into their lists, and note how they are to begin with; counts of nodes left out are there."""
    jobs, rows, nodes, lists, stay_nodes, _, _, node_order = c
    lists[2] = -1
    if len(stay_nodes):
        for job in jobs:
            for i in range(job.stay_first, job.stay_last):
                nodes[stay_nodes[i]].claimed += rows[job.stay].per_node
    for n in node_order:
        node = nodes[n]
        node.room = max(0, node.gpus - node.claimed)
        lists[3, node.klass, node.gpus] += 1
        _link(nodes, lists[2], node.klass, node.room, n)
    for node in nodes:
        node.at_first[0], node.at_first[1] = node.claimed, node.room
        node.at_first[2], node.at_first[3] = node.after, node.before


@njit(cache=True, nogil=True)
def change(nodes: Records, lists: Ints, n: int, free: int, claimed: int) -> None:
    """Change the free and claimed GPUs of node *n* by so many."""
    node = nodes[n]
    if free != 0:
        lists[1, node.klass, node.free] -= 1
        node.free += free
        lists[1, node.klass, node.free] += 1
    node.claimed += claimed
    room = max(0, node.free - node.claimed)
    if room != node.room:
        _unlink(nodes, lists[0], node.klass, node.room, n)
        node.room = room
        _link(nodes, lists[0], node.klass, room, n)


@njit(cache=True, nogil=True)
def pick(row: Record, nodes: Records, lists: Ints, picked: Ints, displace: bool) -> bool:
    """Find nodes for configuration *row*: best fit first; whether enough were found (in *picked*).

    With *displace*, GPUs claimed by running jobs may be taken, from where the fewest of them are taken.
    """
    count = 0
    levels = lists.shape[2]
    for room in range(row.per_node, levels):
        n = lists[0, row.klass, room]
        while n >= 0:
            picked[count] = n
            count += 1
            if count == row.width:
                return True
            n = nodes[n].after
    if not displace:
        return False
    enough = 0
    for free in range(row.per_node, levels):
        enough += lists[1, row.klass, free]
    if enough < row.width:
        return False
    for room in range(row.per_node - 1, -1, -1):
        n = lists[0, row.klass, room]
        while n >= 0:
            if nodes[n].free >= row.per_node:
                picked[count] = n
                count += 1
                if count == row.width:
                    return True
            n = nodes[n].after
    return False


@njit(cache=True, nogil=True)
def can_stay(job: Record, rows: Records, nodes: Records, stay_nodes: Ints, picked: Ints) -> bool:
    """Whether running *job* can stay where it is; its nodes go to *picked*."""
    per = rows[job.stay].per_node
    for i in range(job.stay_first, job.stay_last):
        picked[i - job.stay_first] = stay_nodes[i]
        if nodes[stay_nodes[i]].free < per:
            return False
    return True


@njit(cache=True, nogil=True)
def withdraw_claim(job: Record, rows: Records, nodes: Records, lists: Ints, stay_nodes: Ints) -> None:
    """The turn of running *job* has come: it no longer claims what is allocated to it."""
    per = rows[job.stay].per_node
    for i in range(job.stay_first, job.stay_last):
        change(nodes, lists, stay_nodes[i], 0, -per)


@njit(cache=True, nogil=True)
def end_s(row: Record, nodes: Records, where: Ints, first: int) -> float:
    """Time from now until a job ends in configuration *row* on the nodes ``where[first:]``, the last of which wakes."""
    wait_s = 0.0
    for i in range(first, first + row.width):
        wait_s = max(wait_s, nodes[where[i]].wait_s)
    return row.time_s + wait_s


def tardiness(job: Record, ends_s: float, time_s: float) -> float:
    """Expected tardiness cost of *job* if it runs *time_s* and ends *ends_s* from now, as is expected."""
    if "outcomes" in job.dtype.names:
        return _expected_tardiness(job, ends_s, time_s)
    return _certain_tardiness(job, ends_s, time_s)


@overload(tardiness)
def _compiled(job: Record, ends_s: float, time_s: float) -> Callable[[Record, float, float], float]:  # noqa: ARG001
    """Choose when compiling, by the fields of the record: what is certain costs no test in the loops."""
    return _expected_tardiness if "outcomes" in job.fields else _certain_tardiness


def _certain_tardiness(job: Record, ends_s: float, time_s: float) -> float:  # noqa: ARG001
    return job.weight * (ends_s - job.slack_s) if ends_s > job.slack_s else 0.0


def _expected_tardiness(job: Record, ends_s: float, time_s: float) -> float:
    late_s = 0.0
    for q in range(job.outcomes):
        late_s += max(0.0, ends_s + time_s * job.spread[q] - job.slack_s)
    return job.weight * late_s / job.outcomes


@njit(cache=True, nogil=True)
def ends_first(node: Record, j: int, ends_s: float) -> bool:
    """Whether job *j*, which ends *ends_s* from now, is the first-ending job of *node*; ties go to the lower index."""
    return ends_s < node.first_end_s or (ends_s == node.first_end_s and j < node.first_job)


@njit(cache=True, nogil=True)
def set_first(node: Record, j: int, ends_s: float, cost: float) -> None:
    """Make job *j* the first-ending job of *node*."""
    node.first_job, node.first_end_s, node.first_cost = j, ends_s, cost


@njit(cache=True, nogil=True)
def give(jobs: Records, rows: Records, nodes: Records, lists: Ints, given: Ints, picked: Ints, j: int, r: int) -> float:
    """Give job *j* the nodes in *picked* in configuration *r*; returns its tardiness cost."""
    job, row = jobs[j], rows[r]
    job.choice = r
    ends_s = end_s(row, nodes, picked, 0)
    for i in range(row.width):
        n = picked[i]
        given[job.slot + i] = n
        change(nodes, lists, n, -row.per_node, 0)
        if ends_first(nodes[n], j, ends_s):
            set_first(nodes[n], j, ends_s, row.node_cost)
    return tardiness(job, ends_s, row.time_s)


@njit(cache=True, nogil=True)
def copy(source: Ints, target: Ints) -> None:
    """Copy without a slice, whose error message takes Numba 2 s to compile."""
    for i in range(len(source)):
        target[i] = source[i]


@njit(cache=True, nogil=True)
def keep(c: Candidate, choice: Ints, given: Ints) -> None:
    """Copy the schedule of *c*."""
    for j in range(len(c.jobs)):
        choice[j] = c.jobs[j].choice
    copy(c.given, given)
