"""What those who look are shown, and that it is not made anew where nothing has changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.live import view
from commonwatt.store.records import RequestKind
from tests.live.bench import Bench, node


@pytest.fixture
def bench(tmp_path):
    b = Bench(tmp_path, nodes=[node("n-1"), node("n-2", gpu_w=300)])
    yield b
    b.close()


def test_nodes_are_drawn_anew_when_anything_about_them_has_changed_and_only_then(bench):
    b = bench
    b.settle()
    seen = [b.board().nodes]

    def changed():
        b.advance(20.0)
        b.settle()
        seen.append(b.board().nodes)
        return seen[-1] is not seen[-2]

    assert not changed()
    job = b.submit(1000.0)
    assert changed()
    assert sorted(n.held_gpus for n in b.board().nodes) == [0, 1]
    b.submit(1000.0, times_s={"V100": {4: 1000.0}}, gpus=4)  # it waits
    assert not changed()
    b.ask(RequestKind.DRAIN, node="n-1")
    assert changed()
    assert [n.drained for n in b.board().nodes] == [True, False]
    power_w = sum(n.power_w for n in b.board().nodes)
    controller = b.session.controller
    (there,) = controller.book.nodes.values()
    controller.book.retime(0, "V100", 1, 1000.0, 77.0)
    assert changed()
    assert sum(n.power_w for n in b.board().nodes) == pytest.approx(power_w - (200.0, 300.0)[there[0]] + 77.0)
    b.ask(RequestKind.CANCEL, job=job)
    assert changed()
    assert [n.held_gpus for n in b.board().nodes] == [0, 0]


def test_a_node_without_usable_gpus_is_down_only_if_the_engine_says_so(bench, monkeypatch):
    b = bench
    b.settle()
    seen = b.engine.nodes()

    def shown(up):
        none = np.zeros_like(seen.usable_gpus)
        monkeypatch.setattr(b.engine, "nodes", lambda: replace(seen, usable_gpus=none, up=up))
        b.advance(20.0)
        b.settle()
        return [(n.state, n.power_w) for n in b.board().nodes]

    assert shown(np.array([True, False])) == [("on", 100.0), ("down", None)]
    assert shown(np.array([True, True])) == [("on", 100.0), ("on", 100.0)]
    assert shown(None) == [("down", None), ("down", None)]


def test_progress_of_many_jobs_is_shown_now_and_then_of_few_at_once(bench, monkeypatch):
    b = bench
    job = b.submit(1000.0, epochs=10)
    b.settle()

    def shown_after(seconds):
        b.advance(seconds)
        b.ask(RequestKind.RELEASE, job=job)
        b.look()
        return b.board().jobs[job].done_epochs

    assert shown_after(50.0) == pytest.approx(0.5)
    monkeypatch.setattr(view, "_FEW", 0)
    assert shown_after(3.0) == pytest.approx(0.5)
    assert shown_after(3.0) == pytest.approx(0.56)
