"""Fairness of language models by counting tokens.

The virtual token counter (VTC) of Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, is here as what
time and energy fairness are measured against: requests of all tenants to one model run in one batch that others join
and leave at any step, and who has been served fewest tokens joins next.
"""

from __future__ import annotations

from collections.abc import Sequence

from commonwatt.timeslicing._scheduler import Charge, FifoScheduler, Task, TenantQueue

__all__ = ["VtcScheduler"]


class VtcScheduler(FifoScheduler):
    """Begins the task of the tenant that has been served least, by tokens (Algorithm 2).

    A task's prompt counts when it begins, tokens of its answer as they are made, each over the tenant's weight. Tasks
    of a tenant begin in their order. If the one whose turn it is does not fit beside those that run, no other goes
    first. A tenant that comes back is lifted to the least counter of those that wait, or, if none waits, to that of
    the tenant that waited last: idleness earns no credit.

    For two tenants that have tasks waiting all the time, tokens served (weighted) differ by at most
    2 max(w_p L, w_q M), where L is the longest prompt and M the most tokens of a batch, prompts and answers (Theorem
    4.4; it holds for w_p up to w_q, as in the paper's experiments, otherwise 2 w_p M does).

    Parameters
    ----------
    prompt, answer
        What a token of each counts: w_p and w_q of section 4.1; the paper's experiments have 1 and 2.
    """

    def __init__(self, prompt: float = 1.0, answer: float = 2.0) -> None:
        super().__init__()
        self.prompt, self.answer = prompt, answer
        self.counters: dict[str, float] = {}  # by tenant
        self._last: TenantQueue | None = None  # tenant of the task that was last to begin or leave

    def submit(self, task: Task) -> bool:
        """Queue *task*; false, and nothing happens, if its queue is full."""
        tenant = task.tenant
        waiting = [other for other in self.tenants.values() if other.waiting]
        if not super().submit(task):
            return False
        if tenant not in waiting:
            behind = [self._counter(other) for other in waiting]
            floor = min(behind) if behind else 0.0 if self._last is None else self._counter(self._last)
            self.counters[tenant.name] = max(self._counter(tenant), floor)
        return True

    def account(
        self, task: Task, time_ns: int, energy_j: float, *, ended: bool, others: Sequence[Charge] = (),
        output_tokens: int = 0,
    ) -> None:  # fmt: skip
        """Note what the step took that has just run, and count the tokens it made."""
        for charge in (Charge(task.tenant, time_ns, energy_j, output_tokens), *others):
            self._count(charge.tenant, self.answer * charge.output_tokens)
        super().account(task, time_ns, energy_j, ended=ended, others=others)

    def cancel(self, task: Task) -> bool:
        """Withdraw *task*; false if it has begun: then it is marked, and its driver ends it before its next step."""
        withdrawn = super().cancel(task)
        if withdrawn:
            self._last = task.tenant
        return withdrawn

    def _first(self) -> Task | None:
        first: dict[TenantQueue, Task] = {}
        for task in self._line:
            first.setdefault(task.tenant, task)
        return min(first.values(), key=lambda task: (self._counter(task.tenant), task.tenant.number), default=None)

    def _begin(self, task: Task) -> None:
        super()._begin(task)
        self._last = task.tenant
        self._count(task.tenant, self.prompt * task.input_tokens)

    def _counter(self, tenant: TenantQueue) -> float:
        return self.counters.get(tenant.name, 0.0)

    def _count(self, tenant: TenantQueue, tokens: float) -> None:
        self.counters[tenant.name] = self._counter(tenant) + tokens / tenant.weight
