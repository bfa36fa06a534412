"""How tests are shared among workers."""

import os

import pytest


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="there are no workers: run pytest with -n")
def test_a_file_goes_to_one_worker(request):
    """Otherwise each would start a Kubernetes of its own; pytest 9.2 does not take the group from pytest-xdist 3.8."""
    assert request.node.nodeid.endswith("@tests/test_workers.py")
