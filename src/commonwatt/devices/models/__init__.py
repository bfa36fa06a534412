"""Real models, cut into segments between which tenants may be switched.

- ``base``: shared by both runtimes, and where to cut.
- ``onnx_model``, ``onnx_graph``, ``onnx_runtime``: ONNX Runtime. The graph is optimised as a whole, then cut.
- ``torch_model``, ``torch_split``: PyTorch.
"""
