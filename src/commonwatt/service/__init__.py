"""The REST API of the live control plane, and the server it runs in.

``desk.py`` is what it needs of the rest of the process; ``app.py`` puts the resources together, one file each;
``guard.py`` says who may use them, ``envelope.py`` what surrounds every answer, ``server.py`` runs it.
"""
