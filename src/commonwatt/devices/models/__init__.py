"""Real models, cut into segments between which tenants may be switched.

- ``runtimes``: a file to its runtime, by its ending; ``model_file``, ``failures``, ``foreign``: what both share.
- ``cutting``: where to cut, pure; ``measuring``: how long each segment takes.
- ``onnx_model``: ONNX Runtime; ``onnx_graph``, ``onnx_split``: optimise as a whole, then cut; ``onnx_call``,
  ``onnx_runtime``, ``onnx_work``.
- ``torch_model``, ``torch_split``: PyTorch.
"""
