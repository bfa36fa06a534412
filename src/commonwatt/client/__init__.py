"""A client of the live control plane.

``client`` has a method for each request, ``link`` sends and repeats requests, ``settings`` finds the server and token.
"""

from commonwatt.client.client import Client
from commonwatt.client.link import ClientSettings, find_settings

__all__ = ["Client", "ClientSettings", "find_settings"]
