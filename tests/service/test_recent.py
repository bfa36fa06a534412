"""What was found a moment ago is not looked for again, and never for longer than that."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("fastapi")

from commonwatt.service.recent import Recent


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

    assert asyncio.run(told(Recent(1.0, clock=lambda: now_s[0]))) == ("a 1", "a 1", "b 2", "a 3", "a 4")


def test_no_more_than_so_many_are_kept():
    recent = Recent(1.0, most=2, clock=lambda: 0.0)

    async def fill():
        for key in range(5):
            await recent.get(key, lambda key=key: key)

    asyncio.run(fill())
    assert len(recent._known) <= 2
