"""A model server that speaks the Open Inference Protocol v2 and shares one device among tenants.

- ``backend``: the interface behind the protocol; ``sharing``: its implementation on a shared device.
- ``submission``: requests on their way to the device; ``worker``: the thread that drives it.
- ``operation``: what an operator sees and can change. ``triton_documents``: configuration and statistics.
- ``server``, ``front``, ``rest``, ``rest_body``, ``grpc_front``, ``tensors``, ``refusals``: the protocol.
- ``keys``: API keys. ``metrics``: for the operator.
"""
