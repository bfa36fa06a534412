"""Custom resources behind a real API server, by its aggregation layer.

The server of the recipe crashes when it decodes a custom resource (its JSON library is older than its Go). So what
would be served by resource definitions comes from here: the real server authenticates, asks RBAC, and passes on. An
object is stored in a ConfigMap of that server, which so gives it uid, resource version and watches. As of a resource
definition: fields that its schema lacks are pruned, ``status`` is a subresource, ``generation`` grows with ``spec``.
"""

from __future__ import annotations

import copy
import json
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

from commonwatt.engines.kubernetes.api import RefusedByServerError, path_of

from .suspending import IN_USE

KIND = "tests/kind"
ANY = object()
"""Schema of what is kept as it is."""


def pruned(value, schema):
    """Return *value* without the fields that *schema* lacks: a dict of fields, ``{"*": of each}``, ``[of items]``."""
    if isinstance(schema, list):
        return [pruned(each, schema[0]) for each in value or ()]
    if not isinstance(schema, dict) or not isinstance(value, dict):
        return value
    if "*" in schema:
        return {name: pruned(each, schema["*"]) for name, each in value.items()}
    return {name: pruned(each, schema[name]) for name, each in value.items() if name in schema}


def merged(value, patch):
    """Return *value* after a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    found = dict(value) if isinstance(value, dict) else {}
    for name, change in patch.items():
        if change is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), change)
    return found


class ExtensionServer:
    """Serves custom resources until ``stop``.

    *admin* is a client of the real server, *resources* the schema of the spec by (group, version, plural, kind).
    """

    def __init__(self, admin, folder, resources) -> None:
        self.admin, self.resources = admin, {key[:3]: (key[3], spec) for key, spec in resources.items()}
        self.lock = threading.Lock()
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
             "-keyout", folder / "extension.key", "-out", folder / "extension.crt"],
            check=True, capture_output=True,
        )  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "extension.crt", folder / "extension.key")
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"own": self}))
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
        IN_USE.append(self.admin)

    def registrations(self):
        """What makes the real server pass requests on: a service, and the versions that it serves."""
        port = self.server.server_port
        yield {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "extension", "namespace": "default"},
            "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
        }  # fmt: skip
        for group, version in {key[:2] for key in self.resources}:
            service = {"name": "extension", "namespace": "default", "port": port}
            yield {
                "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                "metadata": {"name": f"{version}.{group}"},
                "spec": {
                    "group": group, "version": version, "groupPriorityMinimum": 1000, "versionPriority": 10,
                    "insecureSkipTLSVerify": True, "service": service,
                },
            }  # fmt: skip

    # -- objects

    def shown(self, item):
        """Return the object in a ConfigMap."""
        found, meta = json.loads(item["data"]["object"]), item["metadata"]
        labels = {key: value for key, value in (meta.get("labels") or {}).items() if key != KIND}
        own = {key: meta[key] for key in ("namespace", "uid", "resourceVersion", "creationTimestamp")}
        found["metadata"] |= {**own, "labels": labels, "annotations": meta.get("annotations") or {}}
        if "deletionTimestamp" in meta:
            found["metadata"]["deletionTimestamp"] = meta["deletionTimestamp"]
        return found

    def stored(self, found, namespace, kind, version=None):
        """Return the ConfigMap of an object."""
        meta = found.get("metadata") or {}
        keep = {key: meta[key] for key in ("name", "generation", "ownerReferences") if key in meta}
        body = {**found, "metadata": keep}
        own = {
            "name": f"{kind.lower()}.{meta['name']}", "namespace": namespace,
            "labels": {**(meta.get("labels") or {}), KIND: kind}, "annotations": meta.get("annotations") or {},
        }  # fmt: skip
        own |= {"resourceVersion": version} if version else {}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": own, "data": {"object": json.dumps(body)}}


class _Handler(BaseHTTPRequestHandler):
    own: ExtensionServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        pass

    def _answer(self, body, status=200) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _refuse(self, status, reason, message) -> None:
        self._answer(
            {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": reason,
             "message": message}, status,
        )  # fmt: skip

    def _serve(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts, query = urlsplit(self.path).path.strip("/").split("/"), parse_qs(urlsplit(self.path).query)
        try:
            if parts[0] == "apis" and len(parts) == 3:
                self._discovery(*parts[1:])
            elif parts[0] == "apis" and len(parts) >= 5 and (*parts[1:3], parts[-1]) in self.own.resources:
                self._many("/".join(parts[1:3]), parts[-1], parts, query, content)
            elif parts[0] == "apis" and len(parts) >= 7 and (*parts[1:3], parts[5]) in self.own.resources:
                self._one("/".join(parts[1:3]), parts[4], parts[5], parts[6], parts[7:], query, content)
            else:
                self._refuse(404, "NotFound", "the server could not find the requested resource")
        except RefusedByServerError as error:
            self._refuse(error.status, error.reason, str(error))
        except OSError:  # the client is gone
            self.close_connection = True

    do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _discovery(self, group, version) -> None:
        verbs = ["create", "get", "list", "patch", "watch"]
        found = [
            {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": True, "verbs": verbs}
            for (of, at, plural), (kind, _) in self.own.resources.items() if (of, at) == (group, version)
        ]  # fmt: skip
        body = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{group}/{version}", "resources": found}
        self._answer(body, 200 if found else 404)

    def _many(self, group, plural, parts, query, content) -> None:
        kind, schema = self.own.resources[(*group.split("/"), plural)]
        namespace = parts[4] if parts[3] == "namespaces" else None
        if self.command == "POST":
            body = json.loads(content)
            meta = body["metadata"] = {**body["metadata"], "generation": 1}
            found = {**body, "spec": pruned(body.get("spec") or {}, schema)}
            found.pop("status", None)
            params = {"dryRun": "All"} if "dryRun" in query else {}
            stored = self.own.stored(found, namespace, kind)
            try:
                made = self.own.admin.create(path_of("configmaps", namespace), stored, **params)
            except RefusedByServerError as error:
                if error.status != 409:
                    raise
                self._refuse(409, "AlreadyExists", f"{plural} {meta['name']} already exists")
                return
            self._answer(self.own.shown({**made, "metadata": {"resourceVersion": "0", **made["metadata"]}}), 201)
            return
        asked = {name: values[0] for name, values in query.items()}
        asked["labelSelector"] = ",".join(filter(None, (asked.get("labelSelector"), f"{KIND}={kind}")))
        if asked.get("watch") in ("1", "true"):
            self._watch(path_of("configmaps", namespace), asked, kind, group)
            return
        found = self.own.admin.get(path_of("configmaps", namespace), **asked)
        self._answer({
            "apiVersion": group, "kind": f"{kind}List", "metadata": found["metadata"],
            "items": [self.own.shown(item) for item in found["items"]],
        })  # fmt: skip

    def _watch(self, path, asked, kind, group) -> None:
        import httpx

        access = self.own.admin.access
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        with (
            httpx.Client(base_url=access.server, verify=access.context, timeout=90.0) as client,
            client.stream("GET", f"{path}?{urlencode(asked)}") as answer,
        ):
            try:
                for line in answer.iter_lines():
                    event = json.loads(line)
                    if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                        event["object"] = self.own.shown(event["object"])
                    elif event["type"] == "BOOKMARK":
                        event["object"] |= {"kind": kind, "apiVersion": group}
                    self.wfile.write(json.dumps(event).encode() + b"\n")
                    self.wfile.flush()
            except (OSError, httpx.HTTPError, json.JSONDecodeError):
                pass

    def _one(self, group, namespace, plural, name, rest, query, content) -> None:
        kind, schema = self.own.resources[(*group.split("/"), plural)]
        path = path_of("configmaps", namespace, f"{kind.lower()}.{name}")
        if self.command == "DELETE":
            options = json.loads(content) if content else {}
            item = self.own.admin.get(path)
            wanted = (options.get("preconditions") or {}).get("uid", item["metadata"]["uid"])
            if wanted != item["metadata"]["uid"]:
                self._refuse(409, "Conflict", "Precondition failed: UID in precondition")
                return
            self.own.admin.delete(path, wanted)
            self._answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})
        elif self.command == "PATCH":
            self._patch(kind, schema, path, namespace, rest, json.loads(content))
        else:
            self._answer(self.own.shown(self.own.admin.get(path)))

    def _patch(self, kind, schema, path, namespace, rest, patch) -> None:
        wanted = (patch.get("metadata") or {}).get("uid")
        with self.own.lock:
            item = self.own.admin.get(path)
            if wanted not in (None, item["metadata"]["uid"]):
                self._refuse(409, "Conflict", "Precondition failed: UID in precondition")
                return
            before = self.own.shown(item)
            after = merged(copy.deepcopy(before), patch)
            if rest == ["status"]:
                after = {**before, "status": after.get("status") or {}}
            else:
                after = {**after, "spec": pruned(after.get("spec") or {}, schema)}
                after.pop("status", None)
                if "status" in before:
                    after["status"] = before["status"]
                grown = after["spec"] != before["spec"]
                after["metadata"]["generation"] = before["metadata"].get("generation", 1) + grown
            version = after["metadata"].get("resourceVersion")
            body = self.own.stored(after, namespace, kind, version)
            self._answer(self.own.shown(self.own.admin.ask("PUT", path, body)))
