"""Whatever people ask and whenever the controller begins anew: board, store, ledger and engine agree."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from commonwatt.store.records import ACTIVE, RequestKind
from tests.controlplane.bench import Bench, ended_kinds

NODES = ("n-0", "n-1")
some = st.integers(0, 10**6)


class ControlPlane(RuleBasedStateMachine):
    """Random requests and restarts on virtual work."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.bench = Bench(Path(self.folder.name), preemption={"restart_s": 3}, live={"retries": 2})
        self.names = self.bench.live.cluster.names
        self.jobs: list[int] = []
        self.fresh = True

    def teardown(self) -> None:
        self.bench.close()
        self.folder.cleanup()

    @rule(
        seconds=st.floats(1.0, 300.0), gpus=st.integers(1, 4), epochs=st.integers(1, 5), tenant=st.sampled_from("ab"),
        due_s=st.none() | st.floats(1.0, 500.0),
    )  # fmt: skip
    def submit(self, seconds, gpus, epochs, tenant, due_s):
        self.jobs.append(
            self.bench.submit(
                seconds,
                gpus=gpus,
                epochs=epochs,
                tenant=tenant,
                due_in_s=due_s,
                tardiness_weight=0.0 if due_s is None else 0.1,
            )
        )
        self.fresh = False

    @rule(kind=st.sampled_from([RequestKind.CANCEL, RequestKind.HOLD, RequestKind.RELEASE]), which=some)
    def of_a_job(self, kind, which):
        if self.jobs:
            self.bench.ask(kind, job=self.jobs[which % len(self.jobs)])
            self.fresh = False

    @rule(kind=st.sampled_from([RequestKind.DRAIN, RequestKind.UNDRAIN]), which=some)
    def of_a_node(self, kind, which):
        self.bench.ask(kind, node=self.names[which % 2])
        self.fresh = False

    @rule(mode=st.sampled_from(["live", "live", "dry-run"]))
    def mode(self, mode):
        self.bench.ask(RequestKind.MODE, value=mode)
        self.fresh = False

    @rule(seconds=st.floats(0.0, 200.0))
    def advance(self, seconds):
        self.bench.advance(seconds)
        self.fresh = False

    @rule()
    def look(self):
        self.bench.look()
        self.fresh = True

    @rule()
    def begin_anew(self):
        self.bench.begin()
        self.bench.look()
        self.fresh = True

    @rule()
    def killed_before_it_was_written(self):
        store = self.bench.reconciler.store
        store.write, write = lambda tick: None, store.write
        self.bench.look()
        store.write = write
        self.bench.begin()
        self.bench.look()
        self.fresh = True

    @rule()
    def another_process(self):
        self.bench.virtual = None
        self.bench.close()
        self.bench.open()
        self.bench.look()
        self.fresh = True

    @invariant()
    def no_gpu_is_held_twice(self):
        held = [0, 0]
        for run in self.bench.engine._running.values():
            for n in run.nodes:
                held[n] += run.gpus_per_node
        assert all(count <= 2 for count in held)

    @invariant()
    def the_ledger_adds_up(self):
        rows = self.bench.live.store.ledger()
        for column in ("energy_uj", "cost_n", "gpu_us"):
            meter = sum(row[column] for row in rows if row["row"] == "meter")
            assert meter == sum(row[column] for row in rows if row["row"] != "meter")

    @invariant()
    def jobs_end_once_and_the_board_shows_the_store(self):
        if not self.fresh:
            return
        b = self.bench
        board = b.snapshot()
        rows = [b.row(job) for job in self.jobs]
        for row in rows:
            ends = ended_kinds(b.kinds(row.id))
            assert ends == ([] if row.status in ACTIVE else [row.status]), (row, b.kinds(row.id))
            never_fits = row.file.gpus == 3  # on nodes alike with two each; in a dry run it can still be cancelled
            assert b.kinds(row.id).count("submitted") == (not never_fits)
            assert never_fits or row.reason != "never-fits"
        active = {row.id: row for row in rows if row.status in ACTIVE}
        assert board.jobs.keys() == active.keys()
        assert dict(board.rows) == active
        for job, row in active.items():
            shown = board.jobs[job]
            assert (shown.status, shown.held, shown.nodes, shown.gpus) == (row.status, row.held, row.nodes, row.gpus)
            told = (shown.kept_epochs, shown.reason, shown.sentence)
            assert told == (row.kept_epochs, row.reason, row.sentence)
            assert shown.done_epochs >= row.done_epochs  # what is in no snapshot yet is written now and then only
        runs = {job for job, row in active.items() if row.status == "running"}
        refused = {change.handle for change in b.reconciler.engine.waiting_changes()}
        assert runs - {b.reconciler.engine.jobs[h].id for h in refused} == set(b.engine._running)
        for n, node in enumerate(board.nodes):
            assert set(node.jobs) == {job for job in runs if node.name in active[job].nodes}
            assert node.allocated_gpus == sum(active[job].gpus_per_node for job in node.jobs)
            assert node.drained == (self.names[n] in b.live.store.setting("drained"))
        assert board.running == len(runs)
        assert board.waiting == len(active) - len(runs)
        assert board.mode == b.live.store.setting("mode")


ControlPlane.TestCase.settings = settings(
    max_examples=8, stateful_step_count=25, deadline=None, derandomize=True, print_blob=False,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
TestControlPlane = pytest.mark.slow(ControlPlane.TestCase)


@pytest.mark.long
class TestControlPlaneLonger(ControlPlane.TestCase):
    settings = settings(ControlPlane.TestCase.settings, max_examples=25, stateful_step_count=40)
