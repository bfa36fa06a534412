"""The stream's source: what a listener is sent is, put together, what is there."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("sqlalchemy")

from commonwatt.controlplane.snapshot import Snapshot, SnapshotNode
from commonwatt.model.errors import StoreError
from commonwatt.service import broadcaster as broadcaster_module
from commonwatt.service.broadcaster import EVENTS_KEPT, Broadcaster
from commonwatt.store.controller_store import Tick
from commonwatt.store.database import Database, address
from commonwatt.store.records import EventRow
from tests.dashboard.made import MadeService, snapshot_job

PATIENCE_S = 60


@pytest.fixture
def service(tmp_path):
    made = MadeService(tmp_path, nodes=10, running=6, waiting=6)
    yield made
    made.close()


class Listener:
    """Puts messages together as the page does."""

    def __init__(self, tenant=None):
        self.tenant, self.nodes, self.jobs, self.events, self.wholes, self.head = tenant, {}, {}, [], 0, None
        self.gone = set()

    def take(self, message):
        data = json.loads(message.data)
        if message.event == "event":
            self.events.append(data)
            return
        if data["whole"]:
            self.nodes, self.jobs = {}, {}
            self.wholes += 1
        self.head = data["head"]
        self.nodes |= {node["name"]: node for node in data["nodes"]}
        self.jobs |= {job["id"]: job for job in data["jobs"]}
        self.gone |= set(data["gone"])
        for job in data["gone"]:
            self.jobs.pop(job, None)

    def check(self, service):
        snapshot = service.snapshot()
        rows = {row.id: row for row in service.store.jobs(limit=10_000)}
        own = {job for job in snapshot.jobs if self.tenant in (None, rows[job].tenant)}
        assert self.jobs.keys() == own
        for job, sent in self.jobs.items():
            known = asdict(snapshot.jobs[job]) | {"nodes": list(snapshot.jobs[job].nodes)}
            known = {name: value for name, value in known.items() if name not in {"facts", "_why"}}
            assert {name: sent[name] for name in known} == known
            assert (sent["started_s"], sent["due_s"]) == (rows[job].started_s, rows[job].due_s)
            assert (sent["name"], sent["tenant"], sent["epochs"]) == (rows[job].name, rows[job].tenant, 10)
        for node in snapshot.nodes:
            document = asdict(node)
            document["held_gpus"] = document.pop("allocated_gpus")  # the key is from before the name
            assert self.nodes[node.name] == document | {
                "jobs": [job for job in node.jobs if self.tenant is None or job in own]
            }
        running = [job for job in own if snapshot.jobs[job].status == "running"]
        assert (self.head["running"], self.head["waiting"]) == (len(running), len(own) - len(running))
        assert {rows[job].tenant for job in self.gone} <= (
            {self.tenant} if self.tenant else {"ada", "bob", "carol", "dan"}
        )
        for_operators = (snapshot.trouble, None if snapshot.saved is None else dict(snapshot.saved))
        assert (self.head["trouble"], self.head["saved"]) == ((None, None) if self.tenant else for_operators)


def test_a_job_that_is_held_is_not_told_to_wait_for_room(service):
    async def main():
        broadcaster = Broadcaster(service.snapshot, service.database, poll_s=0.01)
        listener, stream = Listener(), broadcaster.subscribe(None)
        await until(listener, stream, lambda: listener.jobs)
        waiting = next(job for job in service.snapshot().jobs.values() if job.status == "waiting")
        running = next(job for job in service.snapshot().jobs.values() if job.status == "running")
        for job in (waiting, running):
            service.change_job(job.id, held=True, sentence="No node has room for it.")
        await until(listener, stream, lambda: listener.jobs[running.id]["held"])
        assert listener.jobs[waiting.id]["reason"] == "held"
        assert listener.jobs[waiting.id]["sentence"] == "it is held until it is released"
        assert listener.jobs[running.id]["sentence"] == "No node has room for it."
        service.change_job(waiting.id, held=False)
        await until(listener, stream, lambda: not listener.jobs[waiting.id]["held"])
        assert listener.jobs[waiting.id]["sentence"] == "No node has room for it."
        await stream.aclose()

    asyncio.run(main())


async def until(listener, stream, done):
    async def go():
        async for messages in stream:
            for message in messages:
                listener.take(message)
            if done():
                return

    await asyncio.wait_for(go(), PATIENCE_S)


@pytest.mark.parametrize("tenant", [None, "ada", "bob"])
def test_what_is_sent_adds_up(service, tenant):
    async def main():
        broadcaster = Broadcaster(service.snapshot, service.database, poll_s=0.01)
        listener, stream = Listener(tenant), broadcaster.subscribe(tenant)
        await until(listener, stream, lambda: listener.jobs)
        listener.check(service)
        for change in (
            lambda: service.change_job(3, done_epochs=9.5),
            lambda: service.tick(
                mode="dry-run",
                jobs={k: job for k, job in service.snapshot().jobs.items() if k % 2},
                nodes=tuple(replace(n, jobs=tuple(k for k in n.jobs if k % 2)) for n in service.snapshot().nodes),
            ),
            lambda: service.tick(nodes=tuple(replace(node, drained=True) for node in service.snapshot().nodes)),
            lambda: service.tick(trouble="the database of bob", saved={"baseline": "fifo", "cost": 12.5}),
        ):
            change()
            await until(listener, stream, lambda: listener.head["ticks"] == service.snapshot().ticks)
            listener.check(service)
        assert listener.wholes == 1
        assert listener.gone
        await stream.aclose()
        assert broadcaster.subscribers == 0

    asyncio.run(main())


def test_a_slow_listener_is_sent_every_change_at_last(service):
    async def main():
        broadcaster = Broadcaster(service.snapshot, service.database, poll_s=0.01)
        slow, fast = Listener(), Listener()
        slowly, quickly = broadcaster.subscribe(None), broadcaster.subscribe(None)
        await until(slow, slowly, lambda: slow.jobs)
        for k in range(5):
            service.change_job(1 + k, done_epochs=9.0)
            await until(fast, quickly, lambda: fast.head and fast.head["ticks"] == service.snapshot().ticks)
        messages = 0

        def caught_up():
            nonlocal messages
            messages += 1
            return slow.head["ticks"] == service.snapshot().ticks

        await until(slow, slowly, caught_up)
        slow.check(service)
        assert slow.wholes == 1
        await slowly.aclose()
        await quickly.aclose()

    asyncio.run(main())


def test_who_knows_other_nodes_is_sent_everything(service):
    async def main():
        broadcaster = Broadcaster(service.snapshot, service.database, poll_s=0.01)
        listener, stream = Listener(), broadcaster.subscribe(None)
        await until(listener, stream, lambda: listener.jobs)
        service.tick(nodes=service.snapshot().nodes[1:])
        await until(listener, stream, lambda: listener.head["ticks"] == service.snapshot().ticks)
        assert listener.nodes.keys() == {node.name for node in service.snapshot().nodes}
        listener.check(service)
        assert listener.wholes == 2
        await stream.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("tenant", [None, "ada"])
def test_of_many_waiting_jobs_those_that_start_first_are_listed(service, monkeypatch, tenant):
    monkeypatch.setattr("commonwatt.service.broadcaster.WAITING_LISTED", 2)
    now_s = service.snapshot().time_s

    def expected():
        """Those that wait, by start; then held ones, then by number. All that run are listed."""
        own = [job for job in service.snapshot().jobs.values() if tenant in (None, job.tenant)]
        waiting = [job for job in own if job.status == "waiting"]
        waiting.sort(key=lambda job: (job.expected_start_s or float("inf"), not job.held, job.id))
        return {job.id for job in own if job.status == "running"} | {job.id for job in waiting[:2]}, len(waiting)

    async def main():
        broadcaster = Broadcaster(service.snapshot, service.database, poll_s=0.01)
        listener, stream = Listener(tenant), broadcaster.subscribe(tenant)
        for job in list(service.snapshot().jobs.values()):
            owner = "ada" if job.id % 3 else job.tenant
            service.tick(jobs={**service.snapshot().jobs, job.id: replace(job, tenant=owner)})
        waiting = [job.id for job in service.snapshot().jobs.values() if job.status == "waiting" and job.id % 3]
        for change in (
            {}, {"expected_start_s": now_s + 1}, {"expected_start_s": None}, {"held": True}, {"status": "running"},
            {"status": "waiting", "held": False, "expected_start_s": now_s + 1e6},
        ):  # fmt: skip
            service.change_job(waiting[-1], **change)
            await until(listener, stream, lambda: listener.head["ticks"] == service.snapshot().ticks)
            listed, number = expected()
            assert (listener.jobs.keys(), listener.head["waiting"]) == (listed, number)
            for job in listed:
                assert listener.jobs[job]["expected_start_s"] == service.snapshot().jobs[job].expected_start_s
        assert number > 2
        assert listener.wholes == 1
        await stream.aclose()

    asyncio.run(main())


def test_events_are_ones_own_and_come_once(service):
    async def main():
        broadcaster = Broadcaster(service.snapshot, service.database, poll_s=0.01)
        ada, operator = Listener("ada"), Listener()
        hers, all_ = broadcaster.subscribe("ada"), broadcaster.subscribe(None)
        tenants = {row.id: row.tenant for row in service.store.jobs(limit=100)}
        await until(operator, all_, lambda: len(operator.events) == 12)
        mine = sum(tenant == "ada" for tenant in tenants.values())
        await until(ada, hers, lambda: len(ada.events) == mine)
        own = next(job for job, tenant in tenants.items() if tenant == "ada")
        other = next(job for job, tenant in tenants.items() if tenant != "ada")
        rows = [EventRow(0, 1.0, "started", job, ("v-9",), 1, "late", "It is late.") for job in (other, own)]
        service.ticks.write(Tick(events=rows))
        await until(operator, all_, lambda: len(operator.events) == 14)
        await until(ada, hers, lambda: len(ada.events) == mine + 1)
        assert {tenants[event["job"]] for event in ada.events} == {"ada"}
        ids = [event["id"] for event in operator.events]
        assert ids == sorted(set(ids))
        assert operator.events[-1]["name"] == f"train-{own:05d}"
        again, resumed = Listener(), broadcaster.subscribe(None, resume=ids[-2])
        await until(again, resumed, lambda: again.events)
        assert [event["id"] for event in again.events] == ids[-1:]
        for stream in (hers, all_, resumed):
            await stream.aclose()

    asyncio.run(main())


def test_of_a_burst_of_events_who_listens_gets_all(service):
    async def main():
        broadcaster = Broadcaster(service.snapshot, service.database, poll_s=0.01)
        listener, stream = Listener(), broadcaster.subscribe(None)
        await until(listener, stream, lambda: len(listener.events) == 12)
        burst = [EventRow(0, 1.0, "waits", 1, (), 0, "late", f"{k}") for k in range(2 * EVENTS_KEPT)]
        service.ticks.write(Tick(events=burst))
        await until(listener, stream, lambda: len(listener.events) >= 12 + len(burst))
        assert [event["sentence"] for event in listener.events[12:]] == [event.sentence for event in burst]
        await stream.aclose()

    asyncio.run(main())


def test_a_store_that_fails_for_a_while(service, monkeypatch):
    async def main():
        broadcaster = Broadcaster(service.snapshot, service.database, poll_s=0.01)
        listener, stream = Listener(), broadcaster.subscribe(None)
        await until(listener, stream, lambda: listener.jobs)
        failures = 0

        def away(*args, **more):
            nonlocal failures
            failures += 1
            raise StoreError("the database is away")

        with monkeypatch.context() as m:
            m.setattr("commonwatt.service.broadcaster.new_events", away)
            service.change_job(1, status="waiting")
            while not failures:
                await asyncio.sleep(0.01)
        await until(listener, stream, lambda: listener.head["ticks"] == service.snapshot().ticks)
        listener.check(service)
        await stream.aclose()

    asyncio.run(main())


def test_who_may_no_longer_listen_is_told_nothing_more(service, monkeypatch):
    async def main():
        broadcaster = Broadcaster(service.snapshot, service.database, poll_s=0.01)
        monkeypatch.setattr("commonwatt.service.broadcaster.RECHECK_S", 0.0)

        async def still():
            return False

        heard = [messages async for messages in broadcaster.subscribe(None, authorized=still)]
        assert {message.event for messages in heard for message in messages} <= {"board", "event"}
        assert broadcaster.subscribers == 0

    asyncio.run(main())


def test_what_is_no_number_is_unknown(service):
    async def main():
        broadcaster = Broadcaster(service.snapshot, service.database, poll_s=0.01)
        service.change_job(1, expected_end_s=float("inf"), done_epochs=float("nan"))
        listener, stream = Listener(), broadcaster.subscribe(None)
        await until(listener, stream, lambda: listener.jobs)
        assert (listener.jobs[1]["expected_end_s"], listener.jobs[1]["done_epochs"]) == (None, None)
        await stream.aclose()

    asyncio.run(main())


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.sets(st.integers(1, 12)), st.integers(0, 12), st.booleans()), max_size=8),
    st.sampled_from([3, 100]),
)
def test_any_history(history, listed):
    """Whenever a listener looks, its messages added up are the snapshot, as far as jobs are listed."""
    odd = {job: {"tenant": "odd" if job % 2 else "even"} for job in range(1, 13)}
    snapshots = [Snapshot(0.0, "live", "simulated", jobs={job: snapshot_job(job, **odd[job]) for job in (1, 2)})]
    for tick, (jobs, done, down) in enumerate(history, 1):
        made = {job: snapshot_job(job, **odd[job], done_epochs=float(done * (job % 3 == 0))) for job in jobs}
        node = SnapshotNode("n", "V100", 4, 4, 0, "down" if down else "on", False, (), None)  # noqa: FBT003
        snapshots.append(Snapshot(float(tick), "live", "simulated", nodes=(node,), jobs=made, ticks=tick))
    broadcaster = Broadcaster(lambda: snapshots[0], Database(address("unused.db", Path("/nonexistent"))))
    listeners, seen, view = [Listener(), Listener("odd")], [broadcaster_module._NOTHING] * 2, None
    with pytest.MonkeyPatch.context() as m:
        m.setattr(broadcaster_module, "WAITING_LISTED", listed)
        for snapshot in snapshots:
            view = broadcaster._next(snapshot, view)
            for k, listener in enumerate(listeners):
                if k == 0 or snapshot.ticks % 3 == 0:  # the second looks now and then
                    data, seen[k] = broadcaster._changes_since(view, seen[k], listener.tenant)
                    listener.take(broadcaster_module.Message("board", data))
                    own = sorted(job for job in snapshot.jobs if listener.tenant is None or job % 2)
                    assert sorted(listener.jobs) == own[:listed]
                    assert listener.head["waiting"] == len(own)
                    assert all(listener.tenant is None or job % 2 for job in listener.gone)
                    assert all(
                        sent["done_epochs"] == snapshot.jobs[job].done_epochs for job, sent in listener.jobs.items()
                    )
                    assert [node["state"] for node in listener.nodes.values()] == [n.state for n in snapshot.nodes]
