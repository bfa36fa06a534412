"""Kubeconfigs, tokens, credential plugins, the service account of a pod."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest
import yaml

from commonwatt.engines.kubernetes import access
from commonwatt.engines.kubernetes.access import access_of
from commonwatt.engines.kubernetes.api import KubernetesApi, path_of
from commonwatt.model.errors import EngineDownError, InputError


def kubeconfig(folder, user=None, cluster=None, **changes):
    document = {
        "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": "https://a.test:6443/", **(cluster or {})}}],
        "users": [{"name": "me", "user": user or {}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me", "namespace": "jobs"}}],
        **changes,
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_token_of_a_kubeconfig(tmp_path):
    found = access_of(kubeconfig(tmp_path, {"token": "abc"}), None)
    assert (found.server, found.namespace, found.bearer()) == ("https://a.test:6443", "jobs", "abc")


def test_a_token_file_is_read_again(tmp_path):
    (tmp_path / "token").write_text("one\n")
    found = access_of(kubeconfig(tmp_path, {"tokenFile": "token"}), None)
    assert found.bearer() == "one"
    (tmp_path / "token").write_text("two\n")
    assert found.bearer() == "one"  # it was read a moment ago
    assert found.bearer(renew=True) == "two"
    (tmp_path / "token").unlink()
    with pytest.raises(EngineDownError, match="token"):
        found.bearer(renew=True)


def plugin(folder, body):
    path = folder / "plugin"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", "args": ["x"],
                     "env": [{"name": "SECRET", "value": "s"}]}}  # fmt: skip


@pytest.mark.parametrize("wrong", ["aws", ["aws", "eks"], 3])
def test_a_plugin_that_is_no_mapping_is_refused(tmp_path, wrong):
    with pytest.raises(InputError, match=r"user\.exec"):
        access_of(kubeconfig(tmp_path, {"exec": wrong}), None)


def test_a_plugin_gives_tokens_until_they_expire(tmp_path):
    user = plugin(
        tmp_path,
        """
with open(__file__ + '.n', 'a+') as file:
    n = file.tell()
    file.write('.')
assert json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind'] == 'ExecCredential'
token = f"{os.environ['SECRET']}{sys.argv[1]}{n}"
print(json.dumps({'status': {'token': token, 'expirationTimestamp': '2000-01-01T00:00:00Z' if n == 0 else None}}))
""",
    )
    found = access_of(kubeconfig(tmp_path, user), None)
    assert [found.bearer(), found.bearer(), found.bearer()] == ["sx0", "sx1", "sx1"]


def test_a_plugin_that_fails_says_why(tmp_path):
    found = access_of(kubeconfig(tmp_path, plugin(tmp_path, "sys.exit('log in first')")), None)
    with pytest.raises(EngineDownError, match=r"plugin .*log in first"):
        found.bearer()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"current-context": "other"}, "field 'context': got 'other', expected the name of one of its contexts"),
        ({"clusters": []}, "one of its clusters"),
        ({"users": [{"name": "you", "user": {}}]}, "one of its users"),
        ({"clusters": [{"name": "it", "cluster": {"server": "a.test"}}]}, "server, https://"),
        (
            {"clusters": [{"name": "it", "cluster": {"server": "https://a", "certificate-authority": "no.crt"}}]},
            "certif",
        ),
        (
            {"clusters": [{"name": "it", "cluster": {"server": "https://a", "certificate-authority-data": "%"}}]},
            "certificates that can be read",
        ),
    ],
)
def test_kubeconfigs_that_cannot_be_used(tmp_path, change, words):
    with pytest.raises(InputError, match=words):
        access_of(kubeconfig(tmp_path, **change), None)


@pytest.mark.parametrize("text", ["", "[1, 2]", "a: [", "\x00"])
def test_files_that_are_no_kubeconfig(tmp_path, text):
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(InputError, match="kubeconfig"):
        access_of(path, None)
    with pytest.raises(InputError, match="can be read"):
        access_of(tmp_path / "none", None)


def test_the_environment_names_a_kubeconfig(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", f"{kubeconfig(tmp_path, {'token': 'abc'})}{os.pathsep}/other")
    assert access_of(None, "it").bearer() == "abc"


@pytest.mark.slow
def test_a_pod_uses_its_service_account(running_kubernetes, tmp_path, monkeypatch):
    config = json.loads(running_kubernetes.kubeconfig("commonwatt").read_text())
    cluster = config["clusters"][0]["cluster"]
    (tmp_path / "token").write_text(config["users"][0]["user"]["token"])
    (tmp_path / "namespace").write_text("commonwatt")
    (tmp_path / "ca.crt").write_bytes(Path(cluster["certificate-authority"]).read_bytes())
    monkeypatch.setattr(access, "_IN_CLUSTER", tmp_path)
    host, _, port = cluster["server"].removeprefix("https://").partition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    found = access_of(None, None)
    assert found.namespace == "commonwatt"
    api = KubernetesApi(found)
    assert len(api.get(path_of("nodes"))["items"]) == 2
    api.close()
