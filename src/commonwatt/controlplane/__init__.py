"""The control plane: a controller over a real engine and a store, kept going.

``wiring`` builds it from a configuration, ``supervisor`` runs it, ``reconciler`` is one run of it. ``snapshot`` is what
API, dashboard and metrics see.
"""
