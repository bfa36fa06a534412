"""A tenant that declares its jobs urgent beyond measure, against one that declares nothing."""

from __future__ import annotations

import pytest

from tests.attacks.site import NODES, served, until

pytestmark = pytest.mark.slow

WEIGHT = 1e9


@pytest.mark.long
@pytest.mark.parametrize("limited", [False, True])
def test_thirty_urgent_jobs_take_the_gpus_of_the_others_only_where_urgency_has_no_limit(tmp_path, limited):
    """Without limits the attack works: what runs is preempted."""
    limits = {"tardiness_weight": 0.001, "tardiness_budget": 0.003, "due_after_s": 3600.0}
    live = {"limits": limits} if limited else {}
    people = [{"name": "greedy"}, {"name": "honest"}]
    nodes = [{**NODES[0], "gpus": 2}]
    policy = {"policies": [{"solver": "random-greedy"}], "preemption": {"restart_s": 0}, "interval_s": 2}
    with served(tmp_path, tenants=people, nodes=nodes, live=live, **policy) as site:
        plan = {"times_s": {"V100": [300]}, "due_in_s": 1000, "tardiness_weight": 0.001}
        honest = [site.submit("sleep", "300", tenant="honest", **plan) for _ in range(2)]
        until(lambda: all(site.status(job) == "running" for job in honest), 120)
        token, answers = site.token("greedy"), []
        for _ in range(30):
            body = {"name": "urgent", "command": ["sleep", "300"], "times_s": {"V100": [300]}, "due_in_s": 1}
            weight = {"tardiness_weight": 0.001 if limited else WEIGHT}
            if limited:
                refused = site.call("POST", "/jobs", token, json={**body, "tardiness_weight": WEIGHT})
                assert refused.status_code == 422
            answers.append(site.call("POST", "/jobs", token, json=body | weight).status_code)
        assert answers.count(201) == (3 if limited else 30)

        def preempted() -> bool:
            events = site.call("GET", "/events?limit=1000").json()["events"]
            return any(event["kind"] == "preempted" and event["job"] in honest for event in events)

        if limited:
            ticks = site.call("GET", "/cluster").json()["ticks"]
            until(lambda: site.call("GET", "/cluster").json()["ticks"] >= ticks + 3)
            assert not preempted()
            assert all(site.status(job) == "running" for job in honest)
        else:
            until(preempted)
