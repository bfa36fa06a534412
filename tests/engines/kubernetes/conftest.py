"""One Kubernetes for all tests of a process, put in order between them."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from commonwatt.engines.kubernetes.settings import KubernetesSettings
from tests.machine import lacking

from .site import NAMESPACE, KubernetesSite, missing

SETTINGS = {
    "namespace": NAMESPACE, "python": sys.executable, "image": "none", "grace_s": 3.0, "patience_s": 2.0, "lag_s": 1.0,
    "start_s": 20.0, "runner_look_s": 0.2, "cpus_per_gpu": 0.5, "lost_s": 1.0, "settle_s": 8.0,
}  # fmt: skip


@pytest.fixture(scope="session")
def running_kubernetes():
    if reason := missing():
        lacking("kubernetes", reason)
    with tempfile.TemporaryDirectory(prefix="kubernetes", ignore_cleanup_errors=True) as folder:
        site = None
        try:
            site = KubernetesSite(Path(folder))
            yield site
        finally:
            if site is not None:
                site.stop()


@pytest.fixture
def kube(running_kubernetes):
    yield running_kubernetes
    running_kubernetes.settle()


@pytest.fixture
def settings():
    return KubernetesSettings(**SETTINGS)
