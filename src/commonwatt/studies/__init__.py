"""The study: scenarios derived from one log, run and compared over one window.

- ``draft``: a study file from a log and what ``scontrol show node`` prints, or from a scenario.
- ``rows``: the scenarios to run: as today, the alternatives, ours, the steps of the waterfall.
- ``run``: runs them, and keeps what is done.
- ``savings``: savings and their intervals.
- ``summary``: the result.
- ``assumptions``: what the numbers rest on.
"""
