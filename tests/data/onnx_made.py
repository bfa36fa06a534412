"""ONNX files for tests; importing this needs no extra."""

from __future__ import annotations

import numpy as np

FLOAT = 1


def saved(path, nodes, inputs, outputs, weights=(), **model):
    """A model; inputs and outputs are name to shape, weights name to shape of zeros or to an array."""
    import onnx
    from onnx import helper

    def values(some):
        return [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in some.items()]

    stored = [
        onnx.numpy_helper.from_array(
            value if isinstance(value, np.ndarray) else np.zeros(value, dtype=np.float32), name
        )
        for name, value in dict(weights).items()
    ]
    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs), stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("mine", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9, **model), str(path))
    return path
