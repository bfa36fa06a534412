"""A client of the live control plane.

``client`` has a method for each request; ``connection`` finds the server and token, and sends and repeats requests.
"""

from commonwatt.client.client import Client
from commonwatt.client.connection import ClientSettings, find_settings

__all__ = ["Client", "ClientSettings", "find_settings"]
