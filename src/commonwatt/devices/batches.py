"""Requests and the batches they run in: a request is divided into batches, or runs in one batch with others.

Rows of a batch cost the same, so time and energy are charged by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from commonwatt.devices.base import Execution, LoadedModel, Tensor
from commonwatt.devices.profiles import StepPowers
from commonwatt.devices.rows import RowPlan, row_inputs, rows_of, size_of
from commonwatt.model.errors import InputError
from commonwatt.timeslicing import Charge, Scheduler, Task, TenantQueue

__all__ = ["Batch", "Batching", "DeviceRequest", "Member"]


@dataclass(frozen=True)
class Batching:
    """How requests to a model are divided and put together.

    Attributes
    ----------
    plan
        How many rows run in one batch.
    together
        Whether requests run in one batch with others of the same tenant.
    across
        Whether they do so with other tenants' requests to the same model file, too.
    ran
        Batches that have run: their number and the time of their steps in ns, by rows.
    """

    plan: RowPlan
    together: bool = True
    across: bool = False
    ran: dict[int, tuple[int, int]] = field(default_factory=dict)


class DeviceRequest:
    """A request for one inference; ``ended`` is called on the driver's thread when it is over.

    Parameters
    ----------
    batching
        ``None``: it runs whole and alone.
    """

    __slots__ = (
        "alone", "batch", "batching", "began_ns", "done", "ended", "ended_ns", "energy_j", "error", "inputs", "key",
        "model", "outputs", "pieces", "powers", "rows", "size", "time_ns",
    )  # fmt: skip

    def __init__(
        self, model: LoadedModel, powers: StepPowers, inputs: dict[str, Tensor], ended: Callable[[Task], None],
        batching: Batching | None = None,
    ) -> None:  # fmt: skip
        self.model = model
        self.powers = powers
        self.inputs = inputs
        self.ended = ended
        divisible = batching is not None and batching.plan.divisible
        self.batching = batching
        self.rows = rows_of(inputs, model.inputs) if divisible else None  # None: it is not divided
        self.key = (model.digest, model.step_names, *(inputs[spec.name].shape[1:] for spec in model.inputs)) \
            if self.rows is not None else ()  # fmt: skip
        self.size = size_of(inputs, model.inputs) if self.rows is not None else 1.0  # of a row, as of ``RowPlan``
        self.done = 0  # rows that have been computed
        self.pieces: list[dict[str, Tensor]] = []  # outputs of these rows
        self.batch: Batch | None = None  # that has begun
        self.alone = False  # a batch with others has failed
        self.outputs: dict[str, Tensor] | None = None
        self.error: Exception | None = None
        self.began_ns: int | None = None
        self.ended_ns = 0
        self.time_ns = 0  # charged
        self.energy_j = 0.0

    def batched(self, task: Task, scheduler: Scheduler, same_device: Callable[[Task], bool]) -> Batch:
        """Return the batch it runs in, which is formed now unless it has begun."""
        return self.batch or Batch.formed(task, scheduler, same_device)

    def take(self, piece: dict[str, Tensor], stop: int) -> bool:
        """Take the outputs of the rows before *stop*; returns whether all are there."""
        self.pieces.append(piece)
        self.done = stop
        if self.rows is not None and stop < self.rows:
            return False
        self.outputs = piece
        if len(self.pieces) > 1:
            self.outputs = {name: np.concatenate([part[name] for part in self.pieces]) for name in piece}
        self.pieces = []
        return True


@dataclass(frozen=True)
class Member:
    """Rows of a request in a batch."""

    task: Task
    start: int
    stop: int

    @property
    def request(self) -> DeviceRequest:
        """The request."""
        work: DeviceRequest = self.task.work
        return work

    @property
    def rows(self) -> int:
        """How many."""
        return self.stop - self.start


class Batch:
    """Rows that go through the steps of a model together; made by :meth:`formed`."""

    def __init__(self, first: Member, most: int) -> None:
        self.members = [first]
        self.model = first.request.model
        self.rows = first.rows
        self.at = 0  # next step
        self.longest_ns = self.time_ns = 0  # of its steps so far
        self._most = most
        self._execution: Execution | None = None

    @classmethod
    def formed(cls, task: Task, scheduler: Scheduler, same_device: Callable[[Task], bool]) -> Batch:
        """Return the next batch of *task*: its next rows, and requests that wait and fit in beside its last ones.

        Requests of other tenants join only if *same_device* says that theirs run at the same clock. Call it while
        holding the driver's lock.
        """
        request: DeviceRequest = task.work
        rows, batching = request.rows, request.batching
        if rows is None or batching is None:
            batch = cls(Member(task, 0, 1), 1)
        else:
            stop = rows if (most := batching.plan.most_rows(request.size)) is None else min(rows, request.done + most)
            batch = cls(Member(task, request.done, stop), batching.plan.worthwhile_rows(request.size))
            alone = request.alone or task.cancelled or len(row_inputs(request.model.inputs)) < len(request.inputs)
            if stop == rows and batching.together and not alone:
                accepts = batch._accepts(same_device)
                scheduler.join(task, accepts, others=batching.across)
        for member in batch.members:
            member.request.batch = batch
        return batch

    def _accepts(self, same_device: Callable[[Task], bool]) -> Callable[[Task], bool]:
        first = self.members[0]

        def accepts(task: Task) -> bool:
            other = task.work
            if (
                not isinstance(other, DeviceRequest)
                or other.rows is None
                or other.batching is None
                or self.rows + other.rows > self._most
            ):
                return False
            if other.key != first.request.key or other.alone or not other.batching.together:
                return False
            if task.tenant is not first.task.tenant and not (other.batching.across and same_device(task)):
                return False
            self.members.append(Member(task, 0, other.rows))
            self.rows += other.rows
            return True

        return accepts

    def abandoned(self) -> bool:
        """Return whether all its requests are cancelled."""
        for member in self.members:  # noqa: SIM110 - at every step, and a generator takes several times as long
            if not member.task.cancelled:
                return False
        return True

    def step(self) -> bool:
        """Run the next step; returns whether it was the last, and hands out the outputs then."""
        if self._execution is None:
            self._execution = self.model.begin(self._inputs())
        self.at += 1
        self._execution.step()
        if self.at < len(self.model.step_names):
            return False
        outputs = self._execution.outputs()
        self._execution = None  # freeing memory is part of this step's time
        self._hand_out(outputs)
        return True

    def ended(self) -> bool:
        """Return whether its requests have ended, however: all of them at once."""
        for member in self.members:
            request = member.request
            if request.outputs is None and request.error is None:
                return False
        return True

    def charged(self, time_ns: int) -> Sequence[tuple[Charge, float]]:
        """Charge *time_ns* of its last step to its requests by row; returns each tenant's part, and its power in W.

        Times sum to *time_ns*.
        """
        at = max(0, self.at - 1)
        if len(self.members) == 1:
            task, request = self.members[0].task, self.members[0].request
            own_j = request.powers.steps_w[at] * time_ns * 1e-9
            request.time_ns += time_ns
            request.energy_j += own_j
            return ((Charge(task.tenant, time_ns, own_j), request.powers.mean_w),)
        by_tenant: dict[str, tuple[TenantQueue, int, float, float]] = {}
        before = 0
        for member in self.members:
            request, tenant = member.request, member.task.tenant
            after = before + member.rows
            own_ns = time_ns * after // self.rows - time_ns * before // self.rows
            own_j = request.powers.steps_w[at] * own_ns * 1e-9
            request.time_ns += own_ns
            request.energy_j += own_j
            _, earlier_ns, earlier_j, mean_w = by_tenant.get(tenant.name, (tenant, 0, 0.0, request.powers.mean_w))
            by_tenant[tenant.name] = tenant, earlier_ns + own_ns, earlier_j + own_j, mean_w
            before = after
        return [(Charge(tenant, own_ns, own_j), mean_w) for tenant, own_ns, own_j, mean_w in by_tenant.values()]

    def learn(self, time_ns: int, *, ended: bool) -> None:
        """Note a step's time, and at the end how long the batch and its longest step were."""
        self.longest_ns = max(self.longest_ns, time_ns)
        self.time_ns += time_ns
        request = self.members[0].request
        if not ended or request.batching is None:
            return
        count, before_ns = request.batching.ran.get(self.rows, (0, 0))
        request.batching.ran[self.rows] = count + 1, before_ns + self.time_ns
        if request.rows is not None:
            request.batching.plan.learn(self.rows, self.longest_ns * 1e-9, request.size)

    def mark(self, now_ns: int) -> None:
        """Note when its requests have begun."""
        for member in self.members if not self.at else ():
            member.request.began_ns = member.request.began_ns or now_ns

    def leave(self, *, everyone: bool) -> Sequence[Member]:
        """Return those whose requests have ended: *everyone*, or none."""
        return self.members if everyone else ()

    def dissolve(self) -> Sequence[Task]:
        """Let its requests run alone, as together they have failed; returns those that had joined the first."""
        for member in self.members:
            member.request.batch, member.request.alone = None, True
        return [member.task for member in self.members[1:]]

    def _inputs(self) -> dict[str, Tensor]:
        first = self.members[0]
        if first.request.rows is None or (len(self.members) == 1 and first.rows == first.request.rows):
            return first.request.inputs
        names = row_inputs(self.model.inputs)
        parts = [
            {name: tensor[m.start : m.stop] if name in names else tensor for name, tensor in m.request.inputs.items()}
            for m in self.members
        ]
        return parts[0] if len(parts) == 1 else {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}

    def _hand_out(self, outputs: dict[str, Tensor]) -> None:
        if len(self.members) == 1 and self.rows == (self.members[0].request.rows or 1):
            self.members[0].request.take(outputs, self.rows)
            return
        for name, tensor in outputs.items():
            if tensor.ndim == 0 or len(tensor) != self.rows:
                raise InputError(f"a model whose output {name!r} has a row for each of {self.rows} rows of the inputs")
        at = 0
        for member in self.members:
            rows = slice(at, at + member.rows)
            member.request.take({name: tensor[rows] for name, tensor in outputs.items()}, member.stop)
            at = rows.stop
