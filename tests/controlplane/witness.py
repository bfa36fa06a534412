"""A job that notices if it runs twice: ``witness.py LOG SECONDS EPOCHS EXIT_CODE``.

It does not end while there is a ``LOG.held``.
"""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

log, seconds, epochs, code = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
lines = log.with_suffix(".log").open("a", buffering=1)
lock = log.with_suffix(".lock").open("a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    lines.write(f"twice {os.getpid()}\n")
    sys.exit(9)
done = Path(os.environ["COMMONWATT_PROGRESS"])
try:
    began = int(json.loads(done.read_text())["kept_epochs"])
except (OSError, ValueError):
    began = 0
lines.write(f"begin {os.getpid()} {began}\n")
for epoch in range(began, epochs):
    time.sleep(seconds / epochs)
    part = done.with_name("part")
    part.write_text(json.dumps({"done_epochs": epoch + 1, "kept_epochs": epoch + 1}))
    part.replace(done)
while log.with_suffix(".held").exists():
    time.sleep(0.02)
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what has come to its end is not cut short any more
lines.write(f"end {os.getpid()}\n")
sys.exit(code)
