"""One shared device: what it is, how it is driven, what it measures.

- ``base``: ``Device``, ``LoadedModel`` and ``Execution``, which is all the loop knows; ``clock``: real and virtual time.
- ``driver``: the scheduler and the device, a step at a time; ``session``: a configuration put together.
- ``run``, ``load``, ``summary``: a workload for a while, and its numbers.
- ``simulated``, ``profiles``: a device in virtual time. ``opening``, ``cpu``, ``cuda``, ``nvml``: real ones.
- ``onnx_model`` (``_graph``, ``_split``, ``_call``, ``_runtime``, ``_work``), ``torch_model`` (``_split``), ``cutting``,
  ``runtimes``, ``measuring``: models, cut into segments.
- ``powers``, ``power_model``: power of each segment; ``profiler``: measured.
- ``tiny_models``: networks to try it with.
"""
