"""One cluster for training jobs, inference services and jobs of a part of a GPU: the five decisions in one tick.

- ``interface``: what one decision passes to the next; what an engine of shared GPUs can do.
- ``sizing``: requests to replicas, latency from a slice, and what was served. ``layouts``: MIG.
  ``placing``: replicas and jobs on GPUs. ``slices``: the time of a shared GPU.
- ``shared_gpus``: the GPUs that are shared, and whose energy it was.
- ``manager``: services and fractional jobs, through one tick. ``controller``: the whole tick.
"""
