"""Profiles a user's own training on this machine: ``commonwatt profile``.

- ``training_run``: runs the command once on some GPUs, and reads its epochs from ``commonwatt.progress``.
- ``hardware``: the GPUs of this machine, or threads in their place, with their meter.
- ``session``: one run for each GPU count and clock; the profile is written after each.
"""
