"""Plain HTTP, to say what no client library would."""

from __future__ import annotations

import http.client
import json
import socket


class Wire:
    """A connection that presents *key*."""

    def __init__(self, address, key=None):
        self.address, self.key = address, key
        host, port = address.rsplit(":", 1)
        self.http = http.client.HTTPConnection(host, int(port), timeout=120)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.close()

    def ask(self, verb, path, body=None, headers=None):
        """Return status, body (JSON if it is) and headers."""
        sent = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        if isinstance(body, dict | list):
            body = json.dumps(body).encode()
        self.http.request(verb, path, body, {**sent, **(headers or {})})
        response = self.http.getresponse()
        answer = response.read()
        if response.headers["content-type"] == "application/json":
            answer = json.loads(answer)
        return response.status, answer, response.headers

    def infer(self, model, body, headers=None):
        return self.ask("POST", f"/v2/models/{model}/infer", body, headers)

    def error(self, model, body, headers=None, status=400):
        """Return the text of the error that is the answer."""
        got, answer, _ = self.infer(model, body, headers)
        assert got == status, answer
        assert list(answer) == ["error"]
        assert "Traceback" not in answer["error"]
        return answer["error"]

    def raw(self):
        """Return a bare socket to the server."""
        host, port = self.address.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=120)


def x(data=(1, 2, 3), shape=(1, 3), datatype="FP32", **more):
    """Return a body with one input."""
    return {"inputs": [{"name": "x", "datatype": datatype, "shape": list(shape), "data": list(data), **more}]}
