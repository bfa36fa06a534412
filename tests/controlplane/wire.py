"""A wire to a server that can be cut: silently, as a network does, or with connections refused."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

__all__ = ["Wire"]


class Wire:
    """Forwards connections to 127.0.0.1 at *server* from a port of its own, until it is closed.

    While it is silent, nothing passes, and what was sent arrives when it is whole again. While it refuses, connections
    end at once.
    """

    def __init__(self, server: int) -> None:
        self._server = server
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._passes, self._refuses, self._closed = threading.Event(), threading.Event(), threading.Event()
        self._passes.set()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, *, silently: bool) -> None:
        """Let nothing pass, in either direction."""
        self._passes.clear()
        if not silently:
            self._refuses.set()
            self._hang_up()

    def mend(self) -> None:
        """Let all pass again."""
        self._refuses.clear()
        self._passes.set()

    def close(self) -> None:
        """End all connections."""
        self._closed.set()
        self._passes.set()
        self._listening.close()
        self._hang_up()

    def _hang_up(self) -> None:
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed.is_set():
            with suppress(OSError):
                here, _ = self._listening.accept()
                if self._refuses.is_set():
                    here.close()
                    continue
                there = socket.create_connection(("127.0.0.1", self._server))
                self._ends += [here, there]
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while self._passes.wait() and (data := source.recv(1 << 16)):
                self._passes.wait()
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
