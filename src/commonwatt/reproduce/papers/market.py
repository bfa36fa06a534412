"""Fair hardware sharing by a Fisher market: the thesis' case study on a configurable GPU, chapter 5."""

from __future__ import annotations

from commonwatt.reproduce.topic import Answer, Request, Topic

__all__ = ["TOPICS"]


def _run(request: Request) -> Answer:
    from commonwatt.reproduce.papers._market_rows import answer

    return answer(request)


TOPICS = (
    Topic(
        "market",
        "Three configurations, three user sets: convergence, shares, speedups, utilization, and other mechanisms",
        "Thesis on sharing hardware accelerators by a Fisher market, Fig. 5.3 to 5.10, Tables 5.1 to 5.6",
        "every claim of chapter 5, and in how many draws of the unprinted inputs it holds",
        _run,
        "prices, speedups of each user set, ratio to the entitlement, utilization of three mechanisms",
    ),
)
