"""Writes ``store_0002.jsonl``: the store of a controller at work, as version 0.1.0 (revision 0002) wrote it.

Run once, with that version; from a checkout of commit e15f684::

    PYTHONPATH=src:. python older_store.py store_0002.jsonl

Jobs were completed, interrupted, preempted, cancelled, held and are running, and a node is drained.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path


def write(path: Path) -> None:
    from commonwatt.store.backup import back_up
    from commonwatt.store.records import RequestKind
    from tests.live.bench import Bench, node

    with tempfile.TemporaryDirectory() as folder:
        nodes = [node("n1"), node("n2")]
        bench = Bench(Path(folder), nodes=nodes, policies=[{"solver": "lookahead"}], interval_s=10)
        [bench.submit(1000.0, gpus=2, epochs=5, tardiness_weight=1e-6, due_in_s=9e4) for _ in range(2)]
        bench.settle()
        bench.advance(295.0)
        bench.engine._catch_up()
        bench.engine._fail(1)
        bench.settle()
        bench.engine._repair(1)
        bench.settle()
        bench.advance(20.0)
        bench.settle()
        bench.advance(130.0)
        bench.submit(100.0, gpus=2, tardiness_weight=1e3, due_in_s=150.0)
        bench.settle()
        bench.advance(200.0)
        bench.settle()
        gone, held = bench.submit(50.0), bench.submit(60.0)
        bench.ask(RequestKind.HOLD, job=held)
        bench.ask(RequestKind.CANCEL, job=gone)
        bench.settle()
        bench.ask(RequestKind.DRAIN, node="n2")
        bench.live.store.add_token(None, "operator", bench.clock())
        bench.submit(60.0, gpus=2)
        bench.settle()
        back_up(bench.live.database, Path(folder) / "b.gz", "0.1.0")
        path.write_bytes(gzip.decompress((Path(folder) / "b.gz").read_bytes()))
        bench.close()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
