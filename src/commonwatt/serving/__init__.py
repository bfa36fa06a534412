"""A model server that speaks the Open Inference Protocol v2 and shares one device among tenants.

- ``backend``: the interface behind the protocol; ``sharing``: its implementation on a shared device, and its settings.
- ``worker``: the thread that drives the device, and the requests it computes.
- ``server``, ``front``, ``rest``, ``rest_body``, ``grpc_front``, ``tensors``, ``refusals``: the protocol.
- ``keys``: API keys. ``metrics``: for the operator.
"""
