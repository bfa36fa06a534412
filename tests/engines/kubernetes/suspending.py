"""A newer API server in front of a real one of 1.20, which does not know ``suspend`` of Jobs.

It answers as documented for 1.24: the field is kept, and a condition says that a Job was suspended. Behind it a
suspended Job has a parallelism of 0, with which the real controller of Jobs does the same: it deletes the pods, and
makes no others. A node selector of its pods may change while it is suspended (1.27), and ``managedBy`` is kept (1.30);
the pods themselves do not get that selector.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

from commonwatt.engines.kubernetes.access import access_of
from commonwatt.engines.kubernetes.api import KubernetesApi

NOTE = "tests/parallelism"
"""Annotation of a Job that is suspended: its parallelism."""
RESUMED, SELECTOR, MANAGED_BY = "tests/resumed", "tests/node-selector", "tests/managed-by"


def shown(job):
    """Return a Job as a newer server shows it."""
    spec, status, notes = job["spec"], job.get("status") or {}, job["metadata"].get("annotations") or {}
    kept = notes.get(NOTE)
    held = {} if kept is None else {"parallelism": int(kept)}
    held |= {"managedBy": notes[MANAGED_BY]} if MANAGED_BY in notes else {}
    if SELECTOR in notes:
        template = spec["template"]
        pod = {**template["spec"], "nodeSelector": json.loads(notes[SELECTOR])}
        held["template"] = {**template, "spec": pod}
    if kept is not None or RESUMED in notes:
        said = {"type": "Suspended", "status": "True" if kept is not None else "False"}
        status = {**status, "conditions": [*(status.get("conditions") or ()), said]}
    return {**job, "spec": {**spec, **held, "suspend": kept is not None}, "status": status}


def created(job):
    """Return a new Job as the real server gets it."""
    spec, notes = dict(job["spec"]), dict(job["metadata"].get("annotations") or {})
    if spec.pop("suspend", False):
        notes[NOTE], spec["parallelism"] = str(spec.get("parallelism", 1)), 0
    if (managed_by := spec.pop("managedBy", None)) is not None:
        notes[MANAGED_BY] = managed_by
    return {**job, "metadata": {**job["metadata"], "annotations": notes}, "spec": spec}


IN_USE: list[object] = []
"""Clients whose connections threads may still read from: if one were closed, TLS could write into the file that has its
number next."""


class SuspendingServer:
    """Serves on a port of its own until ``stop``; *kubeconfig* is what clients of it get, with the token of *real*.

    *admin* is for what it has to look up itself.
    """

    def __init__(self, real: Path, admin: Path, kubeconfig: Path) -> None:
        access = access_of(real, None)
        self.client = httpx.Client(base_url=access.server, verify=access.context, timeout=90.0)
        self.admin = KubernetesApi(access_of(admin, None))
        self.patched: list[dict] = []  # the specs that were sent in changes of Jobs
        own = {"client": self.client, "look_up": staticmethod(self.admin.get), "patched": self.patched}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), own))
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        config = json.loads(real.read_text())
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self.server.server_port}"}
        kubeconfig.write_text(json.dumps(config))

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
        IN_USE.extend((self.client, self.admin))


class _Handler(BaseHTTPRequestHandler):
    client: httpx.Client
    patched: list[dict]

    def log_message(self, *_) -> None:
        pass

    def _headers(self):
        return {k: v for k, v in self.headers.items() if k in ("Authorization", "Content-Type", "Accept")}

    def _answer(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "PATCH" and "/jobs/" in self.path:
            content = self._translated(content)
        if self.command == "POST" and self.path.endswith("/jobs"):
            content = json.dumps(created(json.loads(content))).encode()
        request = self.client.build_request(self.command, self.path, headers=self._headers(), content=content or None)
        answer = self.client.send(request, stream=True)
        try:
            if "watch=1" in self.path:
                self._stream(answer)
                return
            body = answer.read()
            if "/jobs" in self.path and answer.status_code < 400:
                found = json.loads(body)
                found = {**found, "items": [shown(job) for job in found["items"]]} if "items" in found else shown(found)
                body = json.dumps(found).encode()
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        finally:
            answer.close()

    def _translated(self, content: bytes) -> bytes:
        patch = json.loads(content)
        spec, notes = patch.get("spec") or {}, {}
        if not spec:
            return content
        self.patched.append(dict(spec))
        now = shown(self.look_up(self.path))["spec"]
        suspend, pods = spec.pop("suspend", now["suspend"]), spec.get("parallelism", now["parallelism"])
        if suspend != now["suspend"] or "parallelism" in spec:
            notes = {NOTE: str(pods) if suspend else None}
            notes |= {RESUMED: "true"} if now["suspend"] and not suspend else {}
            spec["parallelism"] = 0 if suspend else pods
        if "template" in spec:
            selector = spec.pop("template")["spec"]["nodeSelector"]
            notes[SELECTOR] = None if selector is None else json.dumps(selector)
        patch["metadata"] = {**patch.get("metadata", {}), "annotations": notes}
        return json.dumps(patch).encode()

    def _stream(self, answer: httpx.Response) -> None:
        self.send_response(answer.status_code)
        self.end_headers()  # the body ends with the connection
        try:
            for line in answer.iter_lines():
                event = json.loads(line) if line else None
                if event and "/jobs" in self.path and event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                    line = json.dumps({**event, "object": shown(event["object"])})
                self.wfile.write(f"{line}\n".encode())
                self.wfile.flush()
        except (OSError, httpx.HTTPError, json.JSONDecodeError):
            pass

    do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815
