"""A training job as commonwatt runs it: tells how far it is, keeps checkpoints, goes on from them, stops when told to.

It fits a line to made-up points by gradient descent, slowed down to ``--epoch-s`` seconds an epoch on one GPU and
faster on more, by Amdahl's law. Interrupted at any moment and started again, it ends with the same line.

    python examples/train.py --epochs 10 --epoch-s 0.2

Under an engine, checkpoints go where ``COMMONWATT_SNAPSHOTS`` says, else to ``--snapshots``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from commonwatt import progress

STEPS = 10
POINTS = [(x / 20, 2.0 * x / 20 - 1.0 + 0.1 * ((7 * x) % 5 - 2)) for x in range(-20, 21)]


def epoch_s_on(gpus: int, one_gpu_s: float, parallel: float) -> float:
    """Return the seconds of an epoch on so many GPUs when a fraction *parallel* of the work is shared among them."""
    return one_gpu_s * (1.0 - parallel + parallel / gpus)


def step(slope: float, offset: float) -> tuple[float, float]:
    """Return the line after one step of gradient descent."""
    errors = [(x, slope * x + offset - y) for x, y in POINTS]
    return (
        slope - 0.1 * sum(error * x for x, error in errors) / len(POINTS),
        offset - 0.1 * sum(error for _, error in errors) / len(POINTS),
    )


def save(snapshot: Path, epoch: int, line: tuple[float, float]) -> Path:
    """Replace the checkpoint at once: whoever reads it sees the old one or the new one."""
    part = snapshot.with_name(f"{snapshot.name}.part")
    part.write_text(json.dumps({"epochs": epoch, "line": line}), encoding="utf-8")
    part.replace(snapshot)
    return snapshot


def main() -> int:
    """Train; returns 0 when done, 143 when stopped."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--epochs", type=int, default=10, help="epochs of the whole training")
    options.add_argument("--epoch-s", type=float, default=0.2, help="seconds of an epoch on one GPU")
    options.add_argument("--parallel", type=float, default=0.9, help="fraction of the work that more GPUs share")
    options.add_argument("--snapshots", type=Path, default=Path("out/train"), help="folder, if no engine gives one")
    given = options.parse_args()

    snapshots = Path(os.environ.get("COMMONWATT_SNAPSHOTS") or given.snapshots)
    snapshots.mkdir(parents=True, exist_ok=True)
    snapshot, line, kept = snapshots / "line.json", (0.0, 0.0), 0
    if snapshot.exists():
        read = json.loads(snapshot.read_text(encoding="utf-8"))
        line, kept = tuple(read["line"]), read["epochs"]

    job = progress.begin(epochs=given.epochs, kept=kept)
    pause_s = epoch_s_on(job.gpus or 1, given.epoch_s, given.parallel) / STEPS
    for epoch in job.left():
        for i in range(STEPS):
            time.sleep(pause_s)
            line = step(*line)
            job.step(i + 1, of=STEPS)
            if job.stop_requested:  # the epoch is not whole: the last checkpoint is the one to go on from
                print(f"stopped in epoch {epoch}", flush=True)
                return 143
        job.epoch(epoch + 1, snapshot=save(snapshot, epoch + 1, line))
        print(f"epoch {epoch + 1} of {given.epochs}: slope {line[0]:.6f}, offset {line[1]:.6f}", flush=True)
    print(f"done: slope {line[0]:.6f}, offset {line[1]:.6f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
