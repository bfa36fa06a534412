"""Requests on their way to the device: refused if a step would be too long, held for others to join, and queued."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from commonwatt.devices.base import LoadedModel, Tensor
from commonwatt.devices.batches import DeviceRequest
from commonwatt.devices.language.generation import Generation
from commonwatt.devices.rows import RowPlan, row_inputs, rows_of
from commonwatt.devices.session import DeviceSession, LoadedTenant
from commonwatt.model.errors import DeviceError
from commonwatt.model.timeslice_file import ServedModel, SharingTenant, TimesliceConfig
from commonwatt.serving.backend import BackendError, TooManyRequestsError, UnavailableError
from commonwatt.serving.generating import GenerationCall
from commonwatt.serving.rejections import TooLargeError
from commonwatt.serving.worker import InferenceCall, RequestCounts
from commonwatt.timeslicing import Task

__all__ = ["Submission", "Submissions"]


@dataclass(eq=False)
class Submission:
    """A request, and the task that stands for it once it is queued."""

    tenant: SharingTenant
    loaded: LoadedTenant
    request: DeviceRequest | Generation
    call: InferenceCall | GenerationCall
    arrived_ns: int
    task: Task | None = None

    @property
    def rows(self) -> int:
        """Rows of its inputs, 1 if they are not divided."""
        return self.request.rows or 1 if isinstance(self.request, DeviceRequest) else 1


class Submissions:
    """Hands requests to the scheduler of *session*; *wake* is called when there is work."""

    def __init__(self, session: DeviceSession, counts: dict[str, RequestCounts], wake: Callable[[], None]) -> None:
        self._session, self._counts, self._wake = session, counts, wake
        self._batches: dict[tuple[str, str], list[Submission]] = {}  # by tenant and model
        self.failure: DeviceError | None = None

    def submit(
        self, tenant: SharingTenant, spec: ServedModel, inputs: dict[str, Tensor], call: InferenceCall
    ) -> Submission:
        """Queue a request, or hold it for up to its model's delay.

        Raises ``BackendError`` for a request with too many rows, a full queue or a device that has failed; a request
        that was held is refused through *call*.
        """
        loaded = self._session.loaded[tenant.name, spec.key]
        if loaded.batching is not None:
            _check_rows(loaded.model, inputs, loaded.batching.plan, self._session.config)
        request = DeviceRequest(loaded.model, loaded.powers, inputs, call.ended, loaded.batching)
        submission = Submission(tenant, loaded, request, call, self._session.clock.now_ns())
        delay_us = 0 if spec.dynamic_batching is None else spec.dynamic_batching.max_queue_delay_microseconds
        if not delay_us or request.rows is None:
            refused = self._queue([submission])
            if refused:
                raise refused[0][1]
            return submission
        batch = self._batches.setdefault((tenant.name, spec.key), [])
        batch.append(submission)
        if sum(other.rows for other in batch) >= self._enough(loaded):
            self._release(tenant.name, spec.key, batch)
        elif len(batch) == 1:
            asyncio.get_running_loop().call_later(delay_us * 1e-6, self._release, tenant.name, spec.key, batch)
        return submission

    def submit_text(
        self, tenant: SharingTenant, loaded: LoadedTenant, request: Generation, call: GenerationCall
    ) -> Submission:
        """Queue a request for text; raises ``BackendError`` for a full queue or a device that has failed."""
        submission = Submission(tenant, loaded, request, call, self._session.clock.now_ns())
        refused = self._queue([submission])
        if refused:
            raise refused[0][1]
        return submission

    def cancel(self, submission: Submission) -> bool:
        """Withdraw a request; false if it has begun: then it ends before its next step, unless others run with it."""
        if submission.task is None:
            for batch in self._batches.values():
                if submission in batch:
                    batch.remove(submission)
                    return True
            return False
        with self._session.driver.lock:
            return self._session.driver.scheduler.cancel(submission.task)

    def _enough(self, loaded: LoadedTenant) -> int:
        return 1 if loaded.batching is None else loaded.batching.plan.worthwhile_rows()

    def _release(self, tenant: str, model: str, batch: list[Submission]) -> None:
        """Queue a *batch*, unless it was queued before its time was over."""
        if self._batches.get((tenant, model)) is not batch:
            return
        del self._batches[tenant, model]
        for submission, error in self._queue(batch):
            submission.call.decline(error)

    def _queue(self, submissions: Sequence[Submission]) -> list[tuple[Submission, BackendError]]:
        """Queue requests, all before the first begins; returns those that were refused."""
        driver, refused = self._session.driver, []
        with driver.lock:
            for submission in submissions:
                error = self._refusal(submission)
                if error is not None:
                    refused.append((submission, error))
        if len(refused) < len(submissions):
            self._wake()
        return refused

    def _refusal(self, submission: Submission) -> BackendError | None:
        if self.failure is not None:
            return UnavailableError(f"the device has failed: {self.failure}")
        spec, scheduler = submission.tenant, self._session.driver.scheduler
        tenant = scheduler.tenants[spec.name]
        queue = min(range(spec.queues), key=lambda place: len(tenant.queues[place]))
        request = submission.request
        prompt, steps = (
            (len(request.order.prompt), request.order.max_tokens) if isinstance(request, Generation) else (0, 1)
        )
        task = Task(tenant, queue, request, submission.arrived_ns, prompt)
        if scheduler.submit(task):
            submission.task = task
            return None
        self._counts[spec.name].requests["refused"] += 1
        weights = sum(other.weight for other in scheduler.tenants.values())
        return TooManyRequestsError(
            f"the queues of this tenant are full ({spec.queue_limit * spec.queues} requests)",
            submission.loaded.powers.time_s * steps * weights / tenant.weight,
        )


def _check_rows(model: LoadedModel, inputs: dict[str, Tensor], plan: RowPlan, config: TimesliceConfig) -> None:
    """Raise ``TooLargeError`` if the rows of *inputs* stay together and would make a step longer than allowed."""
    limit_s = config.step_limit_s(config.longest_undivided_step)
    rows = max((inputs[name].shape[0] for name in row_inputs(model.inputs)), default=1)
    if limit_s is None or rows <= plan.profile.points[0].rows:
        return
    if not plan.profile.divisible:
        why = plan.profile.reason
    elif not plan.divisible:
        why = "its max_batch_size is 0"
    elif rows_of(inputs, model.inputs) is None:
        why = "the inputs have first axes of different lengths"
    else:
        return
    most = max(plan.profile.points[0].rows, plan.most_within(limit_s))
    if rows > most:
        raise TooLargeError(
            f"model {model.name!r}: got {rows} rows, expected at most {most}: its rows cannot be divided ({why}), and "
            f"no step may take longer than {limit_s:.3g} s ({config.longest_undivided_step:g} of the quantum)"
        )
