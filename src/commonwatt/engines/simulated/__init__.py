"""Discrete-event simulation of a cluster.

- ``events``: the event queue, totally ordered by (time, priority, sequence); GPUs of hosts.
- ``engine``: jobs progressing by epochs, checkpoints, preemption, outages, node power.
- ``live``: the same in real time.
"""
