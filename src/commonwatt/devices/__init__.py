"""One shared device: what it is, how it is driven, what it measures.

- ``base``: the interfaces ``Device``, ``LoadedModel``, ``Execution`` and ``DeviceClock``.
- ``driver``: runs the scheduler's choices on the device; ``session``: opens what a configuration names.
- ``batches``: requests divided into batches, and put together in them; ``rows``: how many rows run together.
- ``measured``: cuts and times of models, kept so that every start cuts them alike.
- ``run``: runs a workload for a given time and summarises it.
- ``simulated``: a device in virtual time; ``local``: the CPU and GPUs of this machine.
- ``models``: ONNX and PyTorch models, cut into segments; ``tiny_models``: small networks to try them with.
- ``profiles``: profiles, how they are measured, and the power of each step.
"""
