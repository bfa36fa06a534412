"""Settings of the engine under test; the cluster is in the conftest of all tests."""

from __future__ import annotations

import sys

import pytest

from commonwatt.engines.kubernetes.settings import KubernetesSettings

from .site import NAMESPACE

SETTINGS = {
    "namespace": NAMESPACE, "python": sys.executable, "image": "none", "grace_s": 3.0, "patience_s": 2.0, "lag_s": 1.0,
    "start_s": 20.0, "runner_look_s": 0.2, "cpus_per_gpu": 0.5, "lost_s": 1.0, "settle_s": 8.0,
}  # fmt: skip


@pytest.fixture
def settings():
    return KubernetesSettings(**SETTINGS)
