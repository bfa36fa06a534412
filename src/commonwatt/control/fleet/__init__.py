"""One cluster for training jobs, inference services and jobs of a part of a GPU: the five decisions in one tick.

- ``values``: what one decision hands to the next.
- ``sizing``: requests to replicas; latency from a slice. ``layouts``: MIG. ``placing``: replicas and jobs on GPUs.
  ``slices``: the time of a shared GPU.
- ``engine``: what an engine of shared GPUs can do. ``shared_gpus``: the GPUs that are shared, and whose energy it was.
- ``manager``: services and fractional jobs, through one tick. ``tally``: what they got. ``controller``: the whole tick.
"""
