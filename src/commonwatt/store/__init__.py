"""The store of the live control plane: SQLite, MariaDB or PostgreSQL.

``tables.py`` is the schema; ``store.py`` what may be done to it, each state change in one transaction.
"""
