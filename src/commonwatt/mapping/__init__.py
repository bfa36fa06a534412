"""G#: which layer job runs on which sub-accelerator, and in what order, under one shared bandwidth.

- ``layers``, ``platforms``, ``costs``, ``job_table``: what layers take on sub-accelerators.
- ``problem``: the job table; ``encoding``: a mapping as genes; ``evaluator``: Algorithm 1, makespans, the timeline.
- ``lower_bound``: what no mapping can beat, with its proof.
- ``operators``, ``gsharp``: the genetic search; ``local_search``: annealing; ``baselines``: rules without search.
- ``search``: ask and tell, budgets; ``algorithms``: all by name, and ``auto``; ``explain``: a reason for each job.
"""
