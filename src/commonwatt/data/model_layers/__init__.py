"""Layers of a model in an ONNX file, a PyTorch module or an exported program.

Products of matrices and convolutions become layers; norms, activations, pooling, look-ups and copies are not layers of
any cost model here and count nothing.
"""
