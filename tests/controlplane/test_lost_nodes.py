"""What is said of a job whose node is lost: the engine offers no GPUs of it any more, so decisions take the job off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .bench import Bench, node

NODES = [node("a"), node("b"), node("c")]


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_lost_node_is_named_and_nobody_who_got_the_gpus(tmp_path, nodes):
    b = Bench(tmp_path, nodes=NODES)
    try:
        job = b.submit(1000.0, gpus=2 * nodes, nodes=nodes)
        b.settle()
        own, at = b.engine.nodes, b.row(job).nodes

        def without():
            view = own()
            usable = view.usable_gpus.copy()
            usable[[n for n, name in enumerate("abc") if name not in at[1:]]] = 0
            return replace(view, usable_gpus=usable, up=usable > 0)

        b.engine.nodes = without
        b.advance(60.0)
        b.settle()
        assert b.status(job) == "waiting"
        (told,) = (event.sentence for event in b.live.store.events(job=job) if event.kind == "preempted")
        assert f"is preempted: too few usable GPUs are left on {at[0]}, as on a node that is lost; " in told
        assert "other jobs" not in told
    finally:
        b.close()
