"""A client of the live control plane.

``client.py`` is what one calls, ``link.py`` how requests are sent and when they are sent again, ``settings.py`` where
server and token are found.
"""

from commonwatt.client.client import Client
from commonwatt.client.settings import Settings, find_settings

__all__ = ["Client", "Settings", "find_settings"]
