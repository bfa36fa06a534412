"""A model server that speaks the Open Inference Protocol v2 and shares one device among tenants.

- ``backend``: the interface behind the protocol; ``sharing``: its implementation on a shared device.
- ``worker``: the thread that drives the device, and the requests it computes.
- ``server``, ``front``, ``rest``, ``rest_body``, ``grpc_front``, ``tensors``, ``refusals``: the protocol.
- ``keys``: API keys. ``settings``, ``metrics``: for the operator.
"""
