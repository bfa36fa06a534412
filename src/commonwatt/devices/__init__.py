"""One shared device: what it is, how it is driven, what it measures.

- ``base``: ``Device``, ``LoadedModel`` and ``Execution``, all that the loop knows; ``clock``: real and virtual time.
- ``driver``: the scheduler and the device, a step at a time; ``session``: a configuration put together.
- ``run``, ``load``, ``summary``: a workload for a while, and its numbers.
- ``simulated``, ``profiles``: a device in virtual time. ``opening``, ``cpu``, ``cuda``, ``nvml``: real ones.
- ``models``: ONNX and PyTorch models, cut into segments; ``tiny_models``: networks to try them with.
- ``powers``, ``power_model``: power of each segment; ``profiler``: measured.
"""
