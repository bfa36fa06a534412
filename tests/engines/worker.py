"""A job that trains epoch by epoch, saves a snapshot after each, and reports its progress.

Processes of a gang write the same files, each by a name of its own.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

spec = json.loads(sys.argv[1])  # epochs, unit_s, times: units of the whole job by GPU count
snapshot = Path(os.environ["COMMONWATT_SNAPSHOTS"]) / "epoch"
progress = Path(os.environ["COMMONWATT_PROGRESS"])
epoch_s = spec["times"][os.environ["COMMONWATT_GPUS"]] * spec["unit_s"] / spec["epochs"]
if spec.get("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
begun = int(snapshot.read_text()) if snapshot.exists() else 0
with Path(str(snapshot) + ".log").open("a") as log:  # one line for each time it is started
    log.write(f"{os.getpid()} {begun} {os.environ['CUDA_VISIBLE_DEVICES']}\n")
began_s = time.monotonic()
for epoch in range(begun, spec["epochs"]):
    for part in range(4):
        done = epoch + (part + 1) / 4
        time.sleep(max(0.0, began_s + (done - begun) * epoch_s - time.monotonic()))
        if part == 3:
            kept = snapshot.with_name(f"epoch.part-{os.getpid()}")
            kept.write_text(str(epoch + 1))
            kept.replace(snapshot)
        said = progress.with_name(f"progress.part-{os.getpid()}")
        said.write_text(json.dumps({"done_epochs": done, "kept_epochs": int(done)}))
        said.replace(progress)
sys.stdout.write("done\n")
sys.exit(spec.get("exit", 0))
