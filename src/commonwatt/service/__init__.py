"""The REST API of the live control plane, and the server that runs it.

``context`` names what the service needs of the process around it. ``app`` assembles the resources, one module each;
``auth`` checks tokens and roles and keeps the audit log, ``middleware`` surrounds every response, and ``server`` runs
the application.
"""
