"""When to start what can wait, where the price of energy or its carbon intensity changes. Ours.

A job that may wait is held until the time at which it costs least, of all at which it surely ends by its due date. It
is held only if that saves enough over starting as soon as there is room, so at a constant price nobody is. Until then
it is not in the problem that solvers see.

Jobs that wait for the same cheap hours do not fit into them all. Scarce hours therefore have a price of their own that
nobody pays (``_scarcity``): a job with another hour that is almost as cheap leaves them to others. Then each takes its
GPUs and its power out of a profile of what is free over time, those with most GPU time first, and a few at a time are
moved where that costs less. What runs, and other jobs that wait, are in the profile before them. So a planned start
needs no more room than is expected to be there, and a job for which no time is left that is cheaper, and in time, is
not held any more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Index, Ints
from commonwatt.model.electricity import StepIntegral
from commonwatt.model.units import WEEK_S
from commonwatt.optimize import ranked
from commonwatt.placement._backfill import Backfill
from commonwatt.placement._problem import PlacementProblem, PlacementSolver
from commonwatt.placement.start_times._scarcity import Scarcity
from commonwatt.placement.start_times._timetable import RUNNING, WAITING, Power, Timetable, cheapest_pieces

__all__ = ["StartPlan", "StartRules", "plan_starts"]

MOST_OTHERS = 300  # other jobs that wait, beyond which nobody is held: there is a queue
MOST_HOLDS = 1000
GRADES = 5  # of what jobs save, between which the others do not count
QUEUE_ERROR = 0.5  # a queue may take so much longer than planned, as solvers have orders of their own
ROUNDS = 6
MOST_MOVED = 300  # jobs that are taken out again, after all were planned, each by itself
MOVES = 40  # of a few of them at a time
SPARE = 0.1  # of the time to its due date, that is left when a job that pauses is planned to end
MOST_TAKEN = 0.2  # of all GPU time until the last due date, beyond which no job pauses
ROUNDING = 1e-9


@dataclass(frozen=True)
class StartRules:
    """What may wait, for what, and how surely it ends in time.

    Attributes
    ----------
    value
        What a joule costs over time, in currency (or grams of CO2, or both weighed), PUE included.
    may_wait_s
        Time since submission that a job without a due date may wait.
    margin_s
        Time before its due date by which a job that waited must end.
    sure
        Probability with which it does, where run times are not certain.
    least_saving
        Part of what a job would cost that it must save by waiting.
    delay_cost_s
        What each second of waiting counts for, in the unit of *value*.
    longest_s
        Time since submission beyond which no job is held; infinity: no limit.
    known_s
        For how long from now *value* is known; infinity: for ever.
    pause_s
        Time that a pause costs a job that does not run yet: its restart, and work lost. ``None``: no job pauses.
    """

    value: StepIntegral
    may_wait_s: float = 0.0
    margin_s: float = 0.0
    sure: float = 0.9
    least_saving: float = 0.05
    delay_cost_s: float = 0.0
    longest_s: float = np.inf
    known_s: float = np.inf
    pause_s: float | None = None


@dataclass(frozen=True)
class StartPlan:
    """Which jobs wait, and until when. Shapes [J].

    Attributes
    ----------
    holds
        Jobs that are not to run now; those that do are to pause.
    start_s
        When they are to start; NaN for others.
    pause_s
        When jobs that run now, or may start now, are to pause; NaN: they are not.
    end_s
        When they then end at the latest, as surely as was asked for; NaN for others.
    saved
        What each saves over starting as soon as there is room, in the unit of ``StartRules.value``.
    saved_part
        The same as a part of what it would cost.
    late
        Jobs that are planned to end late, though they would not if they started now.
    cost
        What each that could wait is planned to cost, held or not, in the same unit; NaN for others, or with pauses.
    """

    holds: Bools
    start_s: Floats
    pause_s: Floats
    end_s: Floats
    saved: Floats
    saved_part: Floats
    cost: Floats
    late: Bools

    @property
    def next_s(self) -> float | None:
        """When the first of them starts or pauses; ``None``: none does."""
        times_s = np.concatenate((self.start_s, self.pause_s))
        return float(np.nanmin(times_s)) if np.isfinite(times_s).any() else None

    @classmethod
    def nobody(cls, jobs: int) -> StartPlan:
        """Hold no job."""
        start_s, pause_s, end_s, saved, part, cost = np.full((6, jobs), np.nan)
        late = np.zeros(jobs, dtype=bool)
        return cls(np.zeros(jobs, dtype=bool), start_s, pause_s, end_s, saved, part, cost, late)

    def hold(self, job: int, start_s: float, end_s: float, saved: float, base: float) -> None:
        """Hold a job, which would cost *base*."""
        self.holds[job], self.start_s[job], self.end_s[job] = True, start_s, end_s
        self.saved[job] = saved
        self.saved_part[job] = saved / abs(base) if base else np.nan


def plan_starts(
    problem: PlacementProblem, power: Power, rules: StartRules, rng: np.random.Generator,
    solver: PlacementSolver | None = None, before: Bools | None = None, fixed: Bools | None = None,
    paused: Bools | None = None,
) -> StartPlan:  # fmt: skip
    """Return which of the waiting jobs of *problem* are held, and until when; *solver* then starts them.

    Those held *before* ([J]) let others go first: they stay held until there is room for them too, while that is in
    time, even if that saves nothing more. Running jobs that are *fixed* ([J]) do not pause. Those that were *paused*
    ([J]) are planned first, as they were when they ran: else they would be started and stopped in turn.
    """
    none = np.zeros(len(problem), dtype=bool)
    if rules.value.is_constant or not len(problem):
        return StartPlan.nobody(len(problem))
    stays = none if before is None else before
    best: tuple[tuple[int, float], _Planning, StartPlan] | None = None
    for scarce in (True, False):
        first, soon = none.copy() if paused is None else paused.copy(), none.copy()
        for _ in range(ROUNDS):  # again, with those first that found no time in which they end in time
            plan = StartPlan.nobody(len(problem))
            planning = _Planning(problem, power, rules, solver, none if fixed is None else fixed)
            missed = planning.fill(plan, stays, first, soon, scarce=scarce)
            # not held, and behind those that are: the solver would start them now, in the room kept for others
            behind = (planning.start_s > problem.now_s) & ~soon
            if not (missed & ~first).any() and not behind.any():
                break
            first |= missed
            soon |= behind
        crowded = missed.any() or planning.queue_s > 0 or planning.profile.taken_part() > MOST_TAKEN
        if rules.pause_s is not None and crowded:  # who comes later would find no room, and what paused none to go on
            return plan_starts(problem, power, replace(rules, pause_s=None), rng, solver, before, fixed, paused)
        planning.improve(stays, rng)
        value = int(plan.late.sum()), planning.total()
        if best is None or value < best[0]:
            best = value, planning, plan
        if not planning.planned:
            break
    assert best is not None
    _, planning, plan = best
    planning.write(plan)
    return plan


@dataclass(frozen=True)
class _Option:
    """One configuration of a job, and the times at which it may start. Shapes [S], in order of time."""

    row: int
    surely_s: float  # time it takes at most, as surely as is asked for
    gpu_s: float
    start_s: Floats
    cost: Floats  # waiting included
    first: Ints  # piece of time of each start, and the one after the last
    end: Ints


@dataclass(frozen=True)
class _Choices:
    """What a job may have, and what it costs if it starts as soon as what runs leaves room for it."""

    options: list[_Option]
    base: float

    def worth(self) -> tuple[float, float]:
        """Return the most it could save per GPU second, if it were alone, and for how long it then runs."""
        if not self.options or not np.isfinite(self.base):
            return 0.0, 0.0
        best = min(self.options, key=lambda option: float(option.cost.min()))
        return (self.base - float(best.cost.min())) / best.gpu_s, best.surely_s


@dataclass(frozen=True)
class _Kept:
    """What a job has in a plan."""

    own: _Choices
    option: _Option
    start_s: float
    cost: float
    nodes: Ints


class _Planning:
    """One plan."""

    def __init__(
        self, problem: PlacementProblem, power: Power, rules: StartRules, solver: PlacementSolver | None, fixed: Bools,
    ) -> None:  # fmt: skip
        self.problem, self.power, self.rules = problem, power, rules
        self.allowed = np.ones(len(problem.time_s), dtype=bool)
        if isinstance(solver, Backfill):  # starts jobs as they were requested
            self.allowed = solver.may_have(problem) | (np.arange(len(self.allowed)) == problem.stay[problem.row_job])
        self.surely_s = problem.time_s.copy()  # [C]
        if problem.outcomes is not None:
            self.surely_s *= np.quantile(problem.outcomes, rules.sure, axis=1)[problem.row_job]
        self.planned: dict[int, _Kept] = {}  # jobs that wait, or start now, without pauses
        self.other_cost: dict[int, float] = {}  # of jobs that could wait, and are not among these
        self.queue_s = 0.0  # until every other job that waits has started
        self.start_s = np.full(len(problem), np.nan)  # of jobs that start as soon as there is room, [J]
        now_s = problem.now_s
        possible_s = np.where(self.allowed, self.surely_s, np.inf)
        self.soonest_s = soonest_s = np.minimum.reduceat(possible_s, problem.start[:-1])
        self.latest_s = np.minimum(self._latest_start_s(soonest_s), now_s + WEEK_S)  # to start it, [J]
        self.able = (problem.stay < 0) & (self.latest_s > now_s)
        longest_s = np.maximum.reduceat(self.surely_s, problem.start[:-1])
        dated = np.isfinite(problem.due_s)
        ends_s = np.where(dated, np.minimum(problem.due_s, now_s + WEEK_S), self.latest_s + longest_s)
        self.again_s = self._again_s()
        late_s = problem.now_s + self.again_s + np.where(problem.stay >= 0, self.surely_s[problem.stay], 0.0)
        pauses = (rules.pause_s is not None) & (problem.stay >= 0) & ~fixed & np.isfinite(self.again_s)
        self.pausable = np.flatnonzero(pauses & dated & (late_s < problem.due_s - rules.margin_s))
        planned = self.able.copy()
        planned[self.pausable] = True
        self.any_able = bool(planned.any())
        self.profile = Timetable(problem, power, float(ends_s[planned].max(initial=now_s)))
        self.piece_value = rules.value.integral(self.profile.from_now_s[:-1], self.profile.from_now_s[1:])
        if self.any_able:
            for row in problem.stay[(problem.stay >= 0) & ~np.isin(np.arange(len(problem)), self.pausable)]:
                self.profile.keep(int(problem.row_job[row]), int(row), float(self.surely_s[row]))

    def fill(self, plan: StartPlan, stays: Bools, first: Bools, soon: Bools, *, scarce: bool) -> Bools:
        """Plan all jobs; returns which could wait and now end too late, [J].

        Of those that can wait, those *first* come before others; those that start as *soon* as there is room do not.
        Where hours have a price if they are *scarce*, those with most GPU time come first, else those that save most.
        """
        problem, missed = self.problem, np.zeros(len(self.problem), dtype=bool)
        waits = self.able & ~soon
        able, others = np.flatnonzero(waits), np.flatnonzero((problem.stay < 0) & ~waits)
        if not self.any_able or len(others) > MOST_OTHERS:
            return missed
        for job in self.pausable[ranked(problem.due_s[self.pausable])].tolist():
            self.plan_running(job, plan)
        choices = [self.choices(int(job)) for job in able]
        in_time = problem.now_s + self.soonest_s <= problem.due_s
        for job in others[ranked(-problem.pressure_s[others])]:
            plan.late[job] = self.start_early(int(job)) > problem.due_s[job] and in_time[job]
        offers = [[(of.row, of.first, of.end, of.cost) for of in own.options] for own in choices]
        self.scarcity = Scarcity.clearing(self.profile, offers if scarce else [])
        for rank, k in enumerate(self.order(able, choices, first, scarce=scarce) if len(able) else ()):
            job = int(able[k])
            if rank >= MOST_HOLDS or not self.plan_waiting(job, choices[k], plan, stays=bool(stays[job])):
                missed[job] = self.start_early(job) > problem.due_s[job]
        plan.late[missed & in_time] = True
        return missed

    def improve(self, stays: Bools, rng: np.random.Generator) -> None:
        """Take each job out again, then a few at a time, and plan them anew by their own cost; keep what costs less."""
        jobs = list(self.planned)[:MOST_MOVED]
        sizes = np.minimum(rng.integers(2, 6, size=MOVES if len(jobs) > 1 else 0), len(jobs)).tolist()
        for group in [*([job] for job in jobs), *(rng.permutation(jobs)[:size].tolist() for size in sizes)]:
            before = [self.planned[job] for job in group]
            for kept in before:
                self.profile.give(kept.option.row, kept.nodes, kept.start_s, kept.option.surely_s, jobs=-1)
            after = []
            for job, kept in zip(group, before, strict=True):
                if (chosen := self.choose(kept.own, stays=bool(stays[job]), scarce=False)) is not None:
                    after.append(self._take(kept.own, *chosen))
            saved = sum(kept.cost for kept in before) - sum(kept.cost for kept in after)
            if len(after) == len(group) and saved > ROUNDING * sum(abs(kept.cost) for kept in before):
                self.planned.update(zip(group, after, strict=True))
                continue
            for kept, jobs_more in [*((kept, -1) for kept in after), *((kept, 1) for kept in before)]:
                self.profile.give(kept.option.row, kept.nodes, kept.start_s, kept.option.surely_s, jobs=jobs_more)

    def _take(self, own: _Choices, option: _Option, i: int) -> _Kept:
        start_s = float(option.start_s[i])
        nodes = self.profile.take(option.row, start_s, option.surely_s)
        return _Kept(own, option, start_s, float(option.cost[i]), nodes)

    def total(self) -> float:
        """Return what all jobs cost that can wait."""
        return sum(kept.cost for kept in self.planned.values()) + sum(self.other_cost.values())

    def write(self, plan: StartPlan) -> None:
        """Hold the jobs that are planned for later."""
        for job, kept in self.planned.items():
            plan.cost[job], base = kept.cost, kept.own.base
            if kept.start_s > self.problem.now_s:
                plan.hold(job, kept.start_s, kept.start_s + kept.option.surely_s, base - kept.cost, base)

    def _again_s(self) -> Floats:
        """Time that a pause costs each job: how much longer it takes anew in its configuration, [J]; infinity: no."""
        problem = self.problem
        again_s = np.full(len(problem), np.inf)
        for job in np.flatnonzero(problem.stay >= 0) if self.rules.pause_s is not None else ():
            stay = problem.stay[job]
            for row in range(int(problem.start[job]), int(problem.start[job + 1])):
                if row != stay and problem.alike(row, stay):
                    again_s[job] = max(0.0, float(problem.time_s[row] - problem.time_s[stay]))
        return again_s

    def _latest_start_s(self, soonest_s: Floats) -> Floats:
        """Latest time each job may start for all that is known, [J]; minus infinity if it may not wait."""
        problem, rules = self.problem, self.rules
        dated = np.isfinite(problem.due_s)
        undated_s = problem.submit_s + rules.may_wait_s if rules.may_wait_s > 0 else np.full(len(problem), -np.inf)
        latest_s = np.where(dated, problem.due_s - rules.margin_s - soonest_s, undated_s)
        return np.minimum(latest_s, problem.submit_s + rules.longest_s)

    def _rows(self, job: int) -> list[int]:
        first, end = int(self.problem.start[job]), int(self.problem.start[job + 1])
        return [row for row in range(first, end) if self.allowed[row]]

    def start_early(self, job: int) -> float:
        """Let a job that is not held start as soon as there is room, where it ends first; returns when it ends."""
        problem, profile, best = self.problem, self.profile, (np.inf, 0.0, -1)
        starts_s = profile.starts_s()
        for row in self._rows(job):
            fits = np.flatnonzero(profile.fits(row, starts_s, float(self.surely_s[row])))
            if len(fits):
                end_s = float(starts_s[fits[0]] + self.surely_s[row])
                best = min(best, (end_s, float(starts_s[fits[0]]), row))
        end_s, start_s, row = best
        if row < 0:  # beyond the horizon
            self.queue_s = max(self.queue_s, profile.until_s - problem.now_s)
            return np.inf
        self.queue_s, self.start_s[job] = max(self.queue_s, start_s - problem.now_s), start_s
        profile.take(row, start_s, float(self.surely_s[row]))
        if self.able[job]:
            over = self.rules.value.integral(np.array([start_s]), np.array([start_s + problem.time_s[row]]))
            self.other_cost[job] = float(self.power.share_w[row] * over[0])
        return end_s

    def choices(self, job: int) -> _Choices:
        """Return the configurations of a job that end in time, with all starts worth a look."""
        problem, rules = self.problem, self.rules
        due_s, now_s = problem.due_s[job] - rules.margin_s, problem.now_s
        edges_s = rules.value.changes(now_s, min(self.profile.until_s, now_s + rules.known_s))
        options, base = [], np.inf
        for row in self._rows(job):
            time_s, surely_s = float(problem.time_s[row]), float(self.surely_s[row])
            latest_s = min(due_s - surely_s, self.latest_s[job], now_s + max(0.0, rules.known_s - time_s))
            if latest_s < now_s:
                continue
            starts_s = np.concatenate((self.profile.starts_s(), edges_s, edges_s - time_s, [latest_s]))
            starts_s = np.unique(starts_s[(starts_s >= now_s) & (starts_s <= latest_s)])
            cost = self.power.share_w[row] * rules.value.integral(starts_s, starts_s + time_s)
            cost = cost + rules.delay_cost_s * (starts_s - now_s)
            gpus = int(problem.width[row] * problem.per_node[row])
            options.append(
                _Option(row, surely_s, gpus * surely_s, starts_s, cost, *self.profile.pieces(starts_s, surely_s))
            )
            fits = self.profile.fits_in(row, options[-1].first, options[-1].end)
            if fits.any():
                base = min(base, float(cost[fits.argmax()]))
        return _Choices(options, base)

    def order(self, jobs: Ints, choices: list[_Choices], first: Bools, *, scarce: bool) -> Ints:
        """Order of planning: most GPU time first; or by what a GPU second saves, in grades, and long ones first."""
        late_s, due_s = np.where(first[jobs], self.problem.due_s[jobs], np.inf), self.problem.due_s[jobs]
        if scarce:
            return ranked(late_s, -np.array([self.gpu_s(own) for own in choices]), due_s)
        worth = np.array([own.worth() for own in choices])
        grade = np.ceil(GRADES * worth[:, 0] / max(float(worth[:, 0].max()), 1e-300) - ROUNDING)
        return ranked(late_s, -grade, -worth[:, 1], due_s)

    def gpu_s(self, own: _Choices) -> float:
        """GPU time of a job where it costs least, scarcity included."""
        best, gpu_s = np.inf, 0.0
        for option in own.options:
            least = float((option.cost + self.scarcity.of(option.row, option.first, option.end)).min())
            if least < best:
                best, gpu_s = least, option.gpu_s
        return gpu_s

    def plan_running(self, job: int, plan: StartPlan) -> None:
        """Let a running job go on, or pause now or later."""
        problem, row = self.problem, int(self.problem.stay[job])
        time_s = float(problem.time_s[row])
        base = float(self.power.share_w[row] * self.rules.value.integral(problem.now_s, problem.now_s + time_s))
        pieces = self._in_pieces(job, [row], float(self.again_s[job]))
        if pieces is None or not self._saves(base, pieces[0]):
            self.profile.keep(job, row, float(self.surely_s[row]))
            return
        self._run_in_pieces(job, pieces, base, plan)

    def plan_waiting(self, job: int, own: _Choices, plan: StartPlan, *, stays: bool) -> bool:
        """Hold a job, or let it start now in pieces; returns whether it is planned."""
        chosen = self.choose(own, stays=stays)
        if self.rules.pause_s is not None and not self.problem.locked:
            whole = own.base if chosen is None else float(chosen[0].cost[chosen[1]])
            pieces = self._in_pieces(job, self._rows(job), self.rules.pause_s)
            if pieces is not None and self._saves(min(whole, own.base), pieces[0]):
                self._run_in_pieces(job, pieces, own.base, plan)
                return True
        if chosen is None:
            return False
        self.planned[job] = self._take(own, *chosen)
        return True

    def _saves(self, base: float, cost: float) -> bool:
        return base - cost > self.rules.least_saving * abs(base) + 1e-15

    def _in_pieces(self, job: int, rows: list[int], again_s: float) -> tuple[float, int, Bools] | None:
        """Return the least cost of a job that may pause, its configuration, and the pieces of time it runs in."""
        problem, rules, profile = self.problem, self.rules, self.profile
        piece_s, edges_s = profile.piece_s, profile.from_now_s
        if not np.isfinite(problem.due_s[job]):
            return None
        spare_s = SPARE * (float(problem.due_s[job]) - problem.now_s)  # jobs to come want the same hours
        limit_s = float(problem.due_s[job]) - rules.margin_s - QUEUE_ERROR * self.queue_s - spare_s
        ends = int(np.searchsorted(edges_s, min(limit_s, problem.now_s + rules.known_s) + ROUNDING, side="right")) - 1
        again = int(np.ceil(again_s / piece_s))
        best: tuple[float, int, Bools] | None = None
        for row in rows:
            need = int(np.ceil((self.surely_s[row] + problem.now_s - profile.from_s) / piece_s - ROUNDING))
            room = profile.room(row)[: max(0, ends)]
            if room.sum() < need:
                continue
            state = RUNNING if row == problem.stay[job] else WAITING
            cost = self.power.share_w[row] * self.piece_value[: len(room)]
            total, on = cheapest_pieces(cost, room, need, again, state, rules.delay_cost_s * piece_s)
            total *= float(problem.time_s[row]) / (need * piece_s)
            if best is None or total < best[0]:
                best = total, row, on
        return best

    def _run_in_pieces(self, job: int, pieces: tuple[float, int, Bools], base: float, plan: StartPlan) -> None:
        cost, row, on = pieces
        self.profile.take_pieces(row, on)
        self.other_cost[job] = cost
        running, edges_s = np.flatnonzero(on), self.profile.from_now_s
        if not on[0]:
            plan.hold(job, float(edges_s[running[0]]), float(edges_s[running[-1] + 1]), base - cost, base)
            return
        stops = np.flatnonzero(~on[: running[-1]])
        if len(stops):
            plan.pause_s[job] = edges_s[stops[0]]

    def choose(self, own: _Choices, *, stays: bool, scarce: bool = True) -> tuple[_Option, int] | None:
        """Return where and when a job costs least, of all that is still free, *scarce* hours priced.

        It starts now if it would save too little by waiting; ``None``: nothing is free that is surely in time.
        """
        now_s, best, chosen = self.problem.now_s, np.inf, None
        soonest: tuple[float, _Option] | None = None
        for option in own.options:
            ends_s = option.start_s + option.surely_s + QUEUE_ERROR * self.queue_s
            safe = self.profile.fits_in(option.row, option.first, option.end) & (ends_s <= self._due_s(option))
            if not safe.any():
                continue
            cost = option.cost
            if scarce:
                cost = cost + self.scarcity.of(option.row, option.first, option.end)
            if safe[0] and option.start_s[0] <= now_s and (soonest is None or cost[0] < soonest[0]):
                soonest = float(cost[0]), option
            if (least := float(cost[safe].min())) < best:
                alike = safe & (cost <= least + ROUNDING * float(np.abs(cost).max()))
                best, chosen = least, (option, int(alike.argmax()))  # the earliest of equals
        if chosen is None or stays or chosen[0].start_s[chosen[1]] <= now_s:
            return chosen
        if self._saves(own.base, float(chosen[0].cost[chosen[1]])):
            return chosen
        return None if soonest is None else (soonest[1], 0)

    def _due_s(self, option: _Option) -> float:
        job: Index = self.problem.row_job[option.row]
        return float(self.problem.due_s[job]) - self.rules.margin_s
