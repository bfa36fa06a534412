"""Real input: job logs, measured profiles, and generators of similar data. None of it is in this repository.

- ``third_party``: where third-party data lies on this machine.
- ``catalog``: the public traces and profiles that can be read, where their publishers keep them; the format of a file.
- ``check``: what a file holds. ``demand``: how many GPUs its jobs held at once.
- ``files``: problem files (YAML, JSON) into their models, with errors of one line; atomic writing.
- ``file_kinds``: what a document is.
- ``table``, ``text``: tables with a header, and text that may be gzipped.
- ``log``: ``JobLog``, the one table behind all readers, and periods of it.
- ``readers``: Philly, Alibaba v2023, Helios, Slurm, SWF, CSV.
- ``profiles``: speed against GPU type and count, and power: measured, or fitted scaling laws.
- ``malleable``: from a job with one logged size and run time to one that may run on other GPUs.
- ``generators``: a week similar to Philly, the generator of ANDREAS, its validation on ARMIDA.
- ``workload``: any workload a scenario can name, made into jobs and nodes.
"""
