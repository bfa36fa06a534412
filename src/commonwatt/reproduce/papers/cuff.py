"""CUFF (Mammen, Bashir, Kolluri, Lee, Shenoy): forecasts of GPU demand by quantiles, and a knob."""

from __future__ import annotations

from commonwatt.reproduce.topic import Answer, Request, Topic

__all__ = ["TOPICS"]


def _run(request: Request) -> Answer:
    from commonwatt.reproduce.papers._cuff_rows import answer

    return answer(request)


TOPICS = (
    Topic(
        "cuff",
        "GPU demand of public clusters: networks trained on quantiles and on squared error, performance against saving",
        "CUFF (Mammen, Bashir, Kolluri, Lee, Shenoy), Tables 2 to 4, Fig. 3 to 5",
        "energy overhead of delays, MAE and under-prediction of three networks, performance against energy saving",
        _run,
        "an average day, MAE and under-prediction by level, performance against saving",
    ),
)
