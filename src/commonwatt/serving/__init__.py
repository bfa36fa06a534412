"""A model server for tenants over the Open Inference Protocol v2, with a timeslicing scheduler behind it.

- ``backend``: what the protocol's fronts know of what is behind them; ``sharing``: that, on a shared device.
- ``worker``, ``calls``: the thread that computes, and requests on their way there and back.
- ``server``, ``front``, ``rest`` (``_body``, ``_read``), ``grpc_front``, ``tensors``, ``checks``, ``answers``,
  ``refusals``: the protocol.
- ``keys``: who may do what. ``settings``, ``status``, ``metrics``: for the operator.
"""
