"""Servers of databases, where they are installed."""

from tests.store.conftest import mariadb, postgresql

__all__ = ["mariadb", "postgresql"]
