"""What was found a moment ago is not looked for again, and never for longer than that."""

from __future__ import annotations

import asyncio
import threading

import pytest

pytest.importorskip("fastapi")

from commonwatt.model.errors import StoreError
from commonwatt.service.context import TtlCache


def test_within_the_time_the_same_answer_is_given():
    now_s, asked = [0.0], []

    def find(name):
        asked.append(name)
        return f"{name} {len(asked)}"

    async def told(recent):
        first = await recent.get("a", lambda: find("a"))
        now_s[0] = 0.9
        again = await recent.get("a", lambda: find("a"))
        other = await recent.get("b", lambda: find("b"))
        now_s[0] = 1.0
        later = await recent.get("a", lambda: find("a"))
        recent.forget()
        return first, again, other, later, await recent.get("a", lambda: find("a"))

    assert asyncio.run(told(TtlCache(1.0, clock=lambda: now_s[0]))) == ("a 1", "a 1", "b 2", "a 3", "a 4")


def test_what_is_asked_for_often_is_looked_for_while_the_last_answer_is_given():
    now_s, go_on, asked = [0.0], threading.Event(), []

    def find():
        asked.append(1)
        number = len(asked)
        assert number == 1 or go_on.wait(60)
        return number

    async def told(recent):
        first = await recent.get("a", find)
        now_s[0] = 2.5
        during = [await recent.get("a", find) for _ in range(2)]  # one query, and nobody waits for it
        pending = recent._pending["a"]
        now_s[0] = 3.0
        too_late = asyncio.ensure_future(recent.get("a", find))
        await asyncio.sleep(0)
        go_on.set()
        await pending
        return first, *during, await too_late, await recent.get("a", find), len(asked)

    assert asyncio.run(told(TtlCache(1.0, clock=lambda: now_s[0], late_s=2.0))) == (1, 1, 1, 2, 2, 2)


def test_no_more_than_so_many_are_kept():
    recent = TtlCache(1.0, most=2, clock=lambda: 0.0)

    async def fill():
        for key in range(5):
            await recent.get(key, lambda key=key: key)

    asyncio.run(fill())
    assert len(recent._results) <= 2


def test_what_takes_longer_than_it_is_kept_is_kept_from_when_it_was_found():
    now_s, asked = [0.0], []

    def find():
        asked.append(1)
        now_s[0] += 5.0
        return len(asked)

    async def told(recent):
        return await recent.get("a", find), await recent.get("a", find)

    assert asyncio.run(told(TtlCache(1.0, clock=lambda: now_s[0]))) == (1, 1)


def test_who_asks_meanwhile_gets_the_same_answer():
    go_on, asked = threading.Event(), []

    def find():
        asked.append(1)
        assert go_on.wait(60)
        return len(asked)

    async def told(recent):
        several = [asyncio.ensure_future(recent.get("a", find)) for _ in range(5)]
        while not asked:
            await asyncio.sleep(0)
        several[0].cancel()  # one hangs up
        await asyncio.sleep(0)
        go_on.set()
        return await asyncio.gather(*several, return_exceptions=True)

    first, *others = asyncio.run(told(TtlCache(0.0, clock=lambda: 0.0)))
    assert isinstance(first, asyncio.CancelledError)
    assert others == [1] * 4
    assert asked == [1]


def test_an_answer_that_was_looked_for_before_is_not_kept_when_it_is_forgotten():
    go_on, asked = threading.Event(), []

    def find():
        asked.append(1)
        number = len(asked)
        assert go_on.wait(60)
        return number

    async def told(recent, *keys):
        asked.clear()
        go_on.clear()
        before = asyncio.ensure_future(recent.get("a", find))
        while not asked:
            await asyncio.sleep(0)
        recent.forget(*keys)
        after = asyncio.ensure_future(recent.get("a", find))
        while len(asked) < 2:
            await asyncio.sleep(0)
        go_on.set()
        return await before, await after, await recent.get("a", find)

    for keys in ((), ("b", "a")):
        assert asyncio.run(told(TtlCache(1.0, clock=lambda: 0.0), *keys)) == (1, 2, 2)


def test_an_error_is_everybodys_and_is_not_kept():
    asked = []

    def find():
        asked.append(1)
        if len(asked) == 1:
            raise StoreError("away")
        return len(asked)

    async def told(recent):
        first = await asyncio.gather(*(recent.get("a", find) for _ in range(2)), return_exceptions=True)
        return [type(error) for error in first], await recent.get("a", find)

    assert asyncio.run(told(TtlCache(1.0, clock=lambda: 0.0))) == ([StoreError] * 2, 2)


def test_what_is_remembered_is_changed_by_who_knows_better():
    recent, asked = TtlCache(clock=lambda: 0.0), []

    def find():
        asked.append(1)
        return 5

    async def ask():
        recent.change("a", lambda found: found + 1)  # nothing is known yet
        first = await recent.get("a", find)
        recent.change("a", lambda found: found + 1)
        return first, await recent.get("a", find)

    assert asyncio.run(ask()) == (5, 6)
    assert len(asked) == 1
