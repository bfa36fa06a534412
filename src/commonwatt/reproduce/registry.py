"""All topics by name, and one of them run."""

from __future__ import annotations

import hashlib
import pkgutil
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING

from commonwatt.reproduce import papers
from commonwatt.reproduce.topic import Answer, Request, Topic

if TYPE_CHECKING:
    from commonwatt.model.results import ReproduceListResult, ReproduceResult

__all__ = ["find", "listed", "reproduce", "topics"]


def topics() -> tuple[Topic, ...]:
    """Return the topics of all papers, by paper."""
    found: list[Topic] = []
    for module in sorted(pkgutil.iter_modules(papers.__path__), key=lambda info: info.name):
        if not module.name.startswith("_"):
            found += import_module(f"{papers.__name__}.{module.name}").TOPICS
    return tuple(found)


def find(name: str) -> Topic:
    """Return the topic called *name*; raises ``InputError`` if there is none."""
    from commonwatt.model.errors import InputError

    known = {topic.name: topic for topic in topics()}
    if name not in known:
        raise InputError(f"one of {', '.join(known)}", field="NAME", value=name)
    return known[name]


def listed() -> ReproduceListResult:
    """Return what can be run again."""
    from commonwatt import __version__
    from commonwatt.model.results import ReproduceListResult, ReproduceTopic

    return ReproduceListResult(
        version=__version__,
        topics=tuple(
            ReproduceTopic(name=topic.name, title=topic.title, paper=topic.paper, compares=topic.compares)
            for topic in topics()
        ),
    )


def reproduce(topic: Topic, request: Request) -> tuple[ReproduceResult, Answer]:
    """Run *topic*; return the document, and the answer with the picture."""
    from commonwatt import __version__
    from commonwatt.model.results import ReproduceResult

    began = perf_counter()
    answer = topic.run(request)
    return ReproduceResult(
        version=__version__,
        seed=request.seed,
        seeds=answer.seeds,
        input_digest=hashlib.sha256("\n".join(answer.digests).encode()).hexdigest(),
        name=topic.name,
        title=topic.title,
        paper=topic.paper,
        extent=request.extent,
        rows=answer.rows,
        x_name=answer.x_name,
        points=answer.points,
        story=answer.story,
        notes=answer.notes,
        wall_s=perf_counter() - began,
    ), answer
