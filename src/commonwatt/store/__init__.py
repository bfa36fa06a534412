"""The store of the live control plane: SQLite, MariaDB or PostgreSQL.

``tables`` is the schema, ``api_store`` what the API does to it, ``controller_store`` what the controller does: each
state change in one transaction.
"""
