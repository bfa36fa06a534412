"""Profiles a user's own training on this machine: ``commonwatt profile``.

- ``training_run``: runs the command for each GPU count and clock, and reads its epochs from ``commonwatt.progress``.
- ``hardware``: the GPUs of this machine, or threads in their place, with their meter.
"""
