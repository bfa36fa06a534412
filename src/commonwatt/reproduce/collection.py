"""All topics of the papers, over several seeds and in several processes; what ends is kept and not run again.

A run is one topic with one seed, in a process of its own. Its result is a file in the folder, ``runs/TOPIC.SEED.json``,
with what it depends on: the extent, the seed, the third-party data, and the digest of every file of this package that
the run loaded. A file is stale once one of these has changed; what a run did not load may change.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from multiprocessing.connection import wait
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from commonwatt import __version__
from commonwatt.data import third_party
from commonwatt.data.file_kinds import other_kind
from commonwatt.data.files import write_atomic
from commonwatt.model.errors import ArgumentError, InputError, MissingExtraError
from commonwatt.model.names import one_of
from commonwatt.model.results import ReproducePoint, ReproduceResult, ReproduceRow
from commonwatt.model.suite_results import ReproduceAllResult, ReproduceClaim, ReproduceTopicResult
from commonwatt.report.redrawing import Redrawing, RedrawnPanel
from commonwatt.reproduce import registry
from commonwatt.reproduce.topic import Extent, Topic, TopicRequest, TopicRun, data_digest, digest_of, loaded, see
from commonwatt.reproduce.verdicts import judged

__all__ = ["SEEDS", "Reproduction", "chosen", "drawable", "options", "recorded", "redrawings"]

SEEDS: dict[Extent, tuple[int, int]] = {"quick": (2, 2), "default": (3, 3), "full": (3, 1)}
"""Seeds of each extent: of a topic, and of one that takes long."""

State = Literal["done", "skipped", "failed"]


@dataclass(frozen=True)
class Reproduction:
    """Topics, seeds and extent; ``folder`` keeps what ends.

    Attributes
    ----------
    folder
        Holds a file for each run, a figure for each topic, ``result.json`` and ``report.html``.
    extent, seed, seeds
        Extent of every topic, first seed, and number of seeds; ``None``: as ``SEEDS`` says.
    topics
        Topics to run.
    jobs
        Processes at a time; 0, for tests: every run in this process, and depends on all that it has loaded.
    """

    folder: Path
    extent: Extent = "default"
    seed: int = 0
    seeds: int | None = None
    topics: tuple[Topic, ...] = ()
    jobs: int = 0

    def runs(self) -> list[TopicRun]:
        """Return every run, the longest topics first."""
        same = hashlib.sha256("\n".join((__version__, data_digest(), self.extent)).encode()).hexdigest()
        return [
            TopicRun(topic.name, seed, self.extent, self.folder, f"{same}.{seed}.{seed == self.seed}")
            for topic in sorted(self.topics, key=lambda topic: not topic.long)  # else one ends long after others
            for seed in self.seeds_of(topic)
        ]

    def seeds_of(self, topic: Topic) -> range:
        """Return the seeds of *topic*."""
        return range(self.seed, self.seed + (self.seeds or SEEDS[self.extent][topic.long]))

    def run(self, ended: Callable[[], None] = lambda: None) -> tuple[ReproduceAllResult, int]:
        """Run what is not kept; returns the result, and how many runs were kept from before.

        *ended* is called as each run ends. An interruption leaves what has ended in the folder.
        """
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of processes that share cores wait for each other
        for name in ("runs", "figures"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        runs, digest = self.runs(), cache(digest_of)
        outcomes: dict[tuple[str, int], dict[str, Any]] = {}
        for run in runs:
            if (record := run.kept(digest)) is not None:
                outcomes[run.topic, run.seed] = record
                ended()
        kept = len(outcomes)
        for run, outcome in _finished([run for run in runs if (run.topic, run.seed) not in outcomes], self.jobs, self):
            outcomes[run.topic, run.seed] = outcome
            ended()
        return self._result(outcomes), kept

    def _result(self, outcomes: dict[tuple[str, int], dict[str, Any]]) -> ReproduceAllResult:
        topics = tuple(
            _topic_result(topic, [outcomes[topic.name, seed] for seed in self.seeds_of(topic)]) for topic in self.topics
        )
        extent = "" if self.extent == "default" else f" --{self.extent}"
        counted = "" if self.seeds is None else f" --seeds {self.seeds}"
        selected = options(topic.name for topic in self.topics)
        return ReproduceAllResult(
            version=__version__,
            command=f"commonwatt reproduce all{extent}{counted} --seed {self.seed}{selected}",
            extent=self.extent,
            seed=self.seed,
            seeds=tuple(range(self.seed, max(self.seeds_of(topic).stop for topic in self.topics))),
            verdicts=_counted(claim.verdict for topic in topics for claim in topic.claims),
            wall_s=sum(topic.wall_s for topic in topics),
            topics=topics,
        )


def _counted(verdicts: Iterable[str]) -> dict[str, int]:
    every = list(verdicts)
    return {name: every.count(name) for name in ("holds", "holds with changes", "does not hold", "not comparable")}


def recorded(path: Path) -> ReproduceAllResult:
    """Return what an earlier call found: its ``result.json``, or the record in ``docs/data``, which has no curves."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        for topic in document["topics"]:
            topic["claims"] = [{"sd": None, **claim} for claim in topic["claims"]]
            units = topic.pop("other_units", {})  # a record of before has none
            if isinstance(topic["others"], dict):  # a record: values only
                values = topic["others"].items()
                topic["others"] = [_unprinted(topic["name"], name, ours, units.get(name, "")) for name, ours in values]
            topic.update({"x_name": None, "points": (), "notes": (), "input_digests": ()} | topic)
        document["verdicts"] = _counted(claim["verdict"] for topic in document["topics"] for claim in topic["claims"])
        document.setdefault("wall_s", sum(topic["wall_s"] for topic in document["topics"]))
        return ReproduceAllResult.model_validate(document)
    except OSError as error:
        raise InputError(f"a file that can be read ({error.strerror})", field="--from", value=str(path)) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        wanted = "a result.json of reproduce all"
        other = other_kind(path, path.read_text("utf-8", "replace"), wanted)
        raise (other or InputError(wanted, field="--from", value=str(path))) from None


def _unprinted(topic: str, name: str, ours: bool | float | str | None, unit: str) -> ReproduceClaim:
    """Return a recorded value that the paper does not print; of its spread nothing is known."""
    claim = judged(topic, [ReproduceRow(quantity=name, paper=None, ours=ours, unit=unit, comparable=False)])
    return claim.model_copy(update={"least": None, "most": None, "held_pct": None})


def redrawings() -> dict[str, Redrawing]:
    """Return how the papers draw their figures, by topic, from ``papers/redrawings.yaml``."""
    import yaml

    text = files("commonwatt.reproduce.papers").joinpath("redrawings.yaml").read_text(encoding="utf-8")
    described: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return {
        name: Redrawing(**{**each, "panels": tuple(RedrawnPanel(**panel) for panel in each.get("panels", ()))})
        for name, each in described.items()
    }


def drawable(topic: ReproduceTopicResult, redrawing: Redrawing) -> Redrawing:
    """Return *redrawing* with the panels for which *topic* has a value: smaller extents and other data have fewer."""
    values = {claim.quantity for claim in (*topic.claims, *topic.others)} | {point.quantity for point in topic.points}

    def named(panel: RedrawnPanel) -> set[object]:
        bars = {quantity for group in panel.groups.values() for quantity in group.values()}
        return bars | {place for _, *places in panel.points for place in places} | {panel.curves}

    return replace(redrawing, panels=tuple(panel for panel in redrawing.panels if named(panel) & values))


def _families() -> dict[str, tuple[str, ...]]:
    """Names that ``--only`` and ``--skip`` take, and the figures and tables that each stands for."""
    names = [topic.name for topic in registry.of_papers()]
    families: dict[str, tuple[str, ...]] = {name: (name,) for name in names}
    for paper in ("andreas", "etf", "gsharp"):
        families[paper] = tuple(name for name in names if name.startswith(f"{paper}-"))
    return families


def chosen(only: Iterable[str] = (), skip: Iterable[str] = ()) -> tuple[Topic, ...]:
    """Return the figures and tables of the papers named by *only* (default: all), without those of *skip*.

    A name is a figure or table, or a paper (andreas, etf, gsharp) for all of its own. Raises ``ArgumentError``
    where a name is unknown, or none is left.
    """
    families = _families()
    named: dict[str, set[str]] = {}
    for field, given in (("only", tuple(only)), ("skip", tuple(skip))):
        for name in given:
            if name not in families:
                raise ArgumentError(one_of(families, name), field=field, value=name)
        named[field] = {each for name in given for each in families[name]}
    wanted = named["only"] or {topic.name for topic in registry.of_papers()}
    left = tuple(topic for topic in registry.of_papers() if topic.name in wanted - named["skip"])
    if not left:
        raise ArgumentError("fewer names: none is left to run", field="skip", value=", ".join(skip))
    return left


def options(names: Iterable[str]) -> str:
    """Return the fewest ``--only`` or ``--skip`` by which *names* alone of all figures and tables of the papers run."""
    kept = set(names)
    rest = {topic.name for topic in registry.of_papers()} - kept
    if not rest:
        return ""
    only, skip = ([f" --{way} {name}" for name in _shortest(names)] for way, names in (("only", kept), ("skip", rest)))
    return "".join(only if len(only) <= len(skip) else skip)


def _shortest(names: set[str]) -> list[str]:
    """Name whole papers where all their figures and tables are among *names*."""
    family_names: list[str] = []
    for name, members in sorted(_families().items(), key=lambda family: -len(family[1])):
        if members and names.issuperset(members):
            family_names.append(name)
            names = names.difference(members)
    return sorted(family_names)


def _finished(runs: list[TopicRun], jobs: int, of: Reproduction) -> Iterator[tuple[TopicRun, dict[str, Any]]]:
    """Yield what each of *runs* leaves, as it ends; processes are started anew, as compiled code is not forked."""
    draws = {topic.name for topic in of.topics if topic.draws}
    drawn = {run for run in runs if run.seed == of.seed and run.topic in draws}
    if jobs == 0:
        for run in runs:
            yield run, _one(run, draw=run in drawn)
        return
    context, waiting = multiprocessing.get_context("spawn"), list(runs)
    under_way: dict[Any, tuple[multiprocessing.context.SpawnProcess, TopicRun]] = {}
    try:
        while waiting or under_way:
            while waiting and len(under_way) < jobs:
                run = waiting.pop(0)
                process = context.Process(target=_process, args=(run, run in drawn), daemon=False)
                run.path.unlink(missing_ok=True)  # what is there is stale
                process.start()
                under_way[process.sentinel] = process, run
            for sentinel in wait(list(under_way)):
                process, run = under_way.pop(sentinel)
                process.join()
                yield run, _left(run, process.exitcode)
    finally:
        for process, _ in under_way.values():
            process.terminate()  # an interruption: what is under way is lost
        for process, _ in under_way.values():
            process.join()


def _left(run: TopicRun, exit_code: int | None) -> dict[str, Any]:
    """Return what a process has left."""
    try:
        outcome: dict[str, Any] = json.loads(run.path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        reason = f"its process ended with {exit_code} and left no result"
        return {"key": run.key, "state": "failed", "reason": reason, "result": None, "code": {}}
    return outcome


def _process(run: TopicRun, draw: bool) -> None:
    """Make a run in a process of its own: leave Ctrl-C to the parent, and end with it however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    sys.addaudithook(see)
    _one(run, draw=draw)


def _one(run: TopicRun, *, draw: bool) -> dict[str, Any]:
    """Run a topic with one seed and keep the outcome; whatever goes wrong in it is part of the outcome."""
    topic = registry.find(run.topic)
    outcome: dict[str, Any] = {"key": run.key, "state": "done", "reason": None, "result": None, "code": {}}
    try:
        result, answer = registry.reproduce(topic, TopicRequest(extent=run.extent, seed=run.seed, seeds=1))
        if draw and answer.draw is not None:
            answer.draw(run.figure)
        outcome["result"] = result.model_dump(mode="json")
    except MissingExtraError as error:
        outcome |= {"state": "skipped", "reason": str(error)}
    except InputError as error:
        outcome |= {"state": "failed", "reason": str(error)}
    except Exception as error:  # one topic must not end the others
        outcome |= {"state": "failed", "reason": f"{type(error).__name__}: {error}".splitlines()[0]}
    outcome["code"] = loaded()
    write_atomic(run.path, json.dumps(outcome, indent=1) + "\n")
    return outcome


def _stand_in(topic: Topic) -> str | None:
    """Return the third-party data of *topic* that is missing; ``None``: nothing is."""
    traces = third_party.folder()

    def there(name: str) -> bool:
        folder, _, rest = name.partition("/")  # the folder of traces may have another name
        return traces is not None and ((traces if folder == "traces" else traces.parent / folder) / rest).exists()

    return ", ".join(name for name in topic.data if not there(name)) or None


def _topic_result(topic: Topic, outcomes: Sequence[dict[str, Any]]) -> ReproduceTopicResult:
    states: list[State] = [outcome["state"] for outcome in outcomes]
    state: State = "failed" if "failed" in states else "skipped" if "skipped" in states else "done"
    results = [ReproduceResult.model_validate(outcome["result"]) for outcome in outcomes if outcome["result"]]
    stand_in = _stand_in(topic)
    claims: list[ReproduceClaim] = []
    if state == "done":
        by_name = [{row.quantity: row for row in result.rows} for result in results]
        claims = [judged(topic.name, [rows[name] for rows in by_name if name in rows], stand_in) for name in by_name[0]]
    first = results[0] if results else None
    return ReproduceTopicResult(
        name=topic.name, title=topic.title, paper=topic.paper, state=state,
        reason=next((o["reason"] for o in outcomes if o["state"] == state and o["reason"]), None),
        stand_in=stand_in,
        seeds=tuple(result.seed for result in results),
        input_digests=tuple(result.input_digest for result in results),
        claims=tuple(claim for claim in claims if claim.paper is not None),
        others=tuple(claim for claim in claims if claim.paper is None),
        x_name=first.x_name if first is not None else None,
        points=_points(results) if state == "done" else (),
        notes=first.notes if first is not None else (),
        wall_s=sum(result.wall_s for result in results),
    )  # fmt: skip


def _points(results: Sequence[ReproduceResult]) -> tuple[ReproducePoint, ...]:
    """Return the points of the first seed that all seeds have, as means over the seeds."""
    values: dict[tuple[str, str, float], list[float | None]] = {}
    for result in results:
        for point in result.points:
            values.setdefault((point.series, point.quantity, point.x), []).append(point.mean)
    points = []
    for point in results[0].points:
        each = values[point.series, point.quantity, point.x]
        means = [value for value in each if value is not None]
        whole = len(means) == len(results)
        spread = stdev(means) if whole and len(means) > 1 else None
        points.append(point.model_copy(update={"mean": fmean(means) if whole else None, "sd": spread}))
    return tuple(points)
