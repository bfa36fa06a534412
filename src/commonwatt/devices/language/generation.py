"""Requests for text, and the batch they run in: one joins when there is room, and leaves when its answer is complete.

Each step computes a token of each answer and, with what room is left, tokens of prompts, so that no step is longer than
the limit. Tokens of a step cost the same: time and energy are charged by token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from commonwatt.devices.base import StepWork, Tensor
from commonwatt.devices.language.base import LanguageModel, SequenceCache, SequencePart
from commonwatt.devices.language.text import Answer, GenerationOrder
from commonwatt.devices.rows import RowPlan
from commonwatt.timeslicing import Charge, Scheduler, Task

__all__ = ["CachePool", "Generation", "GenerationBatch", "LanguagePlan", "divide_step"]


class CachePool:
    """Room for the tokens of those that generate."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.used = tokens, 0

    def take(self, tokens: int) -> bool:
        """Take room for *tokens*; false, and nothing happens, if there is none."""
        if self.used + tokens > self.tokens:
            return False
        self.used += tokens
        return True

    def free(self, tokens: int) -> None:
        """Give room back."""
        self.used -= tokens


@dataclass
class LanguagePlan:
    """How a tenant's requests to a model run.

    Attributes
    ----------
    pool
        Cache of the tenant; under policies without turns, of all tenants with the same model.
    rows
        How many tokens a step may have.
    most_tokens
        Of a prompt and its answer.
    across
        Whether requests of other tenants run in the same batch.
    power_w
        Power of a step, from its work and its time in s.
    """

    pool: CachePool
    rows: RowPlan
    max_sequences: int
    most_tokens: int
    default_max_tokens: int
    across: bool
    power_w: Callable[[StepWork, float], float]


class Generation:
    """A request for text.

    Parameters
    ----------
    on_text
        Called on the driver's thread with the text that each token makes certain; it may be empty.
    ended
        Called there when it is over, however.
    """

    def __init__(
        self, model: LanguageModel, plan: LanguagePlan, order: GenerationOrder, on_text: Callable[[str], None],
        ended: Callable[[Task], None],
    ) -> None:  # fmt: skip
        self.model, self.plan, self.order, self.ended = model, plan, order, ended
        self.answer = Answer(order, model.coder)
        self.batch: GenerationBatch | None = None  # that has begun
        self.error: Exception | None = None
        self.began_ns: int | None = None
        self.ended_ns = 0
        self.time_ns = 0  # charged
        self.energy_j = 0.0
        self._on_text = on_text
        self._cache: SequenceCache | None = None

    def batched(self, task: Task, scheduler: Scheduler, same_device: Callable[[Task], bool]) -> GenerationBatch:
        """Return the batch it runs in, with those who wait and find room in it."""
        batch = self.batch or GenerationBatch(task)
        batch.fill(task, scheduler, same_device)
        return batch

    @property
    def over(self) -> bool:
        """Whether its answer is complete, or it has failed."""
        return self.answer.finish is not None or self.error is not None

    @property
    def wanted(self) -> int:
        """Tokens that can be computed now."""
        return max(1, len(self.order.prompt) - self._length)

    def next_tokens(self, count: int) -> SequencePart:
        """Return *count* of its prompt, or the last of its answer."""
        if self._cache is None:
            self._cache = SequenceCache(self.order.tokens)
        at, prompt = self._length, self.order.prompt
        return SequencePart(self._cache, prompt[at : at + count] if at < len(prompt) else self.answer.tokens[-1:])

    def go_on(self, logits: Tensor) -> bool:
        """Go on by the logits behind its last token; returns whether they make a token of the answer."""
        if self._length < len(self.order.prompt):
            return False
        try:
            text = self.answer.extend(logits)
        except ValueError as error:
            self.error = error
            return False
        self._on_text(text)
        return True

    def forget(self) -> None:
        """Free its cache."""
        self._cache = None

    @property
    def _length(self) -> int:
        return 0 if self._cache is None else self._cache.length


@dataclass(frozen=True)
class _Sequence:
    """A request in a batch."""

    task: Task

    @property
    def request(self) -> Generation:
        work: Generation = self.task.work
        return work


class GenerationBatch:
    """Requests to one model that generate together; none waits for another's end."""

    def __init__(self, first: Task) -> None:
        self.members: list[_Sequence] = []
        self.model: LanguageModel = first.work.model
        self._computed: list[tuple[_Sequence, int, int]] = []  # with tokens computed and made, in the last step
        self._work = StepWork(0.0, 0.0)
        if not self._admit(first):
            raise RuntimeError("the cache is in use although nothing runs")

    def fill(self, task: Task, scheduler: Scheduler, same_device: Callable[[Task], bool]) -> None:
        """Let requests join that wait and find room. Call it while holding the driver's lock."""
        plan: LanguagePlan = task.work.plan
        if not self.abandoned():
            scheduler.join(task, lambda other: same_device(other) and self._admit(other), others=plan.across)

    def _admit(self, task: Task) -> bool:
        request = task.work
        if not isinstance(request, Generation) or request.model is not self.model:
            return False
        most = max(1, (request.plan.rows.most_rows() or 1) // 2)  # the other half of a step is for prompts
        if len(self.members) >= min(most, request.plan.max_sequences):
            return False
        if not request.plan.pool.take(request.order.tokens):
            return False
        self.members.append(_Sequence(task))
        request.batch = self
        return True

    def abandoned(self) -> bool:
        """Return whether all its requests are cancelled."""
        return all(member.task.cancelled for member in self.members)

    def mark(self, now_ns: int) -> None:
        """Note when its requests have begun."""
        for member in self.members:
            member.request.began_ns = member.request.began_ns or now_ns

    def step(self) -> bool:
        """Compute the next tokens; returns false, as it ends with its last request only."""
        self._computed = []
        going = [member for member in self.members if not member.task.cancelled]
        if not going:  # cancelled since it was looked at
            return False
        most = going[0].request.plan.rows.most_rows() or 1
        given = divide_step([member.request.wanted for member in going], most)
        chosen = [(member, count) for member, count in zip(going, given, strict=True) if count]
        pieces = [member.request.next_tokens(count) for member, count in chosen]
        attended = sum(count * (piece.cache.length + (count + 1) // 2)
                       for piece, (_, count) in zip(pieces, chosen, strict=True))  # fmt: skip
        self._work = self.model.work_of(sum(given), attended)
        logits = self.model.step(pieces)
        for (member, count), row in zip(chosen, logits, strict=True):
            self._computed.append((member, count, int(member.request.go_on(row))))
        served = {id(member) for member, _ in chosen}
        self.members.sort(key=lambda member: id(member) in served)  # those that got nothing are first next time
        return False

    def learn(self, time_ns: int, *, ended: bool) -> None:  # noqa: ARG002
        """Note a step's time, so that steps get shorter where they are slower than measured."""
        if self._computed:
            tokens = sum(count for _, count, _ in self._computed)
            self._computed[0][0].request.plan.rows.learn(tokens, time_ns * 1e-9)

    def charged(self, time_ns: int) -> Iterator[tuple[Charge, float]]:
        """Charge *time_ns* of the last step to its requests by token; yields each tenant's part, and its power in W.

        Times sum to *time_ns*.
        """
        tokens, before = sum(count for _, count, _ in self._computed), 0
        parts: dict[str, tuple[Charge, float]] = {}
        for member, count, made in self._computed if time_ns else ():
            request, tenant = member.request, member.task.tenant
            after = before + count
            own_ns = time_ns * after // tokens - time_ns * before // tokens
            power_w = request.plan.power_w(self._work, time_ns * 1e-9)
            request.time_ns += own_ns
            request.energy_j += power_w * own_ns * 1e-9
            old = parts[tenant.name][0] if tenant.name in parts else Charge(tenant, 0, 0.0)
            sums = old.time_ns + own_ns, old.energy_j + power_w * own_ns * 1e-9, old.output_tokens + made
            parts[tenant.name] = Charge(tenant, *sums), power_w
            before = after
        yield from parts.values()

    def leave(self, *, everyone: bool) -> Sequence[_Sequence]:
        """Let those leave that are over or cancelled, or *everyone*; returns them."""
        gone = [m for m in self.members if everyone or m.request.over or m.task.cancelled]
        for member in gone:
            self.members.remove(member)
            member.request.plan.pool.free(member.request.order.tokens)
            member.request.forget()
            member.request.batch = None
        return gone

    def ended(self) -> bool:
        """Return false: its requests end one by one, in ``leave``."""
        return False


def divide_step(wanted: Sequence[int], most: int) -> list[int]:
    """Return how many tokens of each sequence the next step computes.

    Each gets one while there are any: the next of an answer, or one of a prompt. What is left goes to the prompts, in
    order. A caller that puts those that got nothing first lets each have a token in ceil(N / most) steps.

    Parameters
    ----------
    wanted
        Tokens each sequence could compute now, 1 or more: what is left of its prompt, or 1. Shape [N].
    most
        Tokens in a step, 1 or more.
    """
    given = [int(place < most) for place in range(len(wanted))]
    left = most - sum(given)
    for place, tokens in enumerate(wanted):
        more = min(left, tokens - given[place])
        given[place] += more
        left -= more
    return given
