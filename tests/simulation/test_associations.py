"""Limits and shares of associations beside those of QOS, under every solver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.simulation.record import Record
from commonwatt.simulation.run_setup import tenant_weights
from commonwatt.simulation.runner import Prepared
from tests.simulation.made import documents, node, prepared, run
from tests.simulation.test_qos import job


def begins(jobs: list[dict], associations: list[dict], qos: tuple[dict, ...] = (), **more: object) -> dict[str, float]:
    """Return when each job of 100 s starts on one node of 8 GPUs."""
    document = {
        "workload": {"source": "jobs", "jobs": jobs},
        "nodes": [node("n", gpus=8)],
        "associations": associations,
        "qos": list(qos),
        "unused_nodes": {"state": None},
        "policies": [{"solver": "fair-share", "fair_share_weight": 0}],
        **more,
    }
    _, record = run(prepared(document))
    return dict(zip(record.jobs.name, record.jobs.began_s.tolist(), strict=True))


TREE = [{"account": "lab"}, {"account": "phys", "parent": "lab"}, {"account": "chem", "parent": "lab"}]


def tree(**fields: dict) -> list[dict]:
    """Return the tree with more fields of some accounts."""
    return [{**row, **fields.get(row["account"], {})} for row in TREE]


def test_what_all_have_together_is_limited_at_every_level():
    jobs = [job("p1", tenant="phys"), job("p2", tenant="phys"), job("c1", tenant="chem"), job("c2", tenant="chem")]
    found = begins(jobs, tree(lab={"max_jobs": 3}, phys={"max_jobs": 1}))
    assert found == {"p1": 0, "p2": 100, "c1": 0, "c2": 0}
    assert begins(jobs, tree(lab={"max_gpus": 2})) == {"p1": 0, "p2": 0, "c1": 100, "c2": 100}


def test_what_a_user_has_is_limited_by_the_nearest_level_that_says_so():
    jobs = [
        *(job(f"a{k}", tenant="phys", user="ann") for k in range(3)),
        *(job(f"b{k}", tenant="phys", user="bob") for k in range(2)),
        *(job(f"c{k}", tenant="chem", user="ann") for k in range(2)),
    ]
    users = [{"account": "phys", "user": "ann", "max_jobs_per_user": 2}]
    found = begins(jobs, tree(lab={"max_jobs_per_user": 1}) + users)
    # ann has 2 in phys, as she is told; bob 1, as the lab says; ann 1 in chem, counted apart
    assert found == {"a0": 0, "a1": 0, "a2": 100, "b0": 0, "b1": 100, "c0": 0, "c1": 100}


def test_a_user_has_limits_of_all_it_has_too():
    jobs = [job(f"a{k}", tenant="phys", user="ann", gpus=2) for k in range(3)]
    assert begins(jobs, [*TREE, {"account": "phys", "user": "ann", "max_gpus": 4}]) == {"a0": 0, "a1": 0, "a2": 100}


def test_a_partition_has_an_association_of_its_own():
    jobs = [job(f"{part}{k}", tenant="phys", user="ann", partition=part) for part in ("x", "y") for k in range(2)]
    users = [
        {"account": "phys", "user": "ann", "max_jobs": 2}, {"account": "phys", "user": "ann", "partition": "x"},
        {"account": "phys", "user": "bob"},
    ]  # fmt: skip
    users[1]["max_jobs"] = 1
    nodes = [node("n", gpus=8, partitions=["x", "y"])]
    assert begins(jobs, TREE + users, nodes=nodes) == {"x0": 0, "x1": 100, "y0": 0, "y1": 0}


def test_a_limit_of_the_qos_comes_before_the_same_limit_of_the_account_but_its_jobs_count_there():
    jobs = [
        job("q1", tenant="phys", qos="q"), job("q2", tenant="phys", qos="q"), job("p1", tenant="phys"),
        job("late", 120, tenant="phys"),
    ]  # fmt: skip
    found = begins(jobs, tree(phys={"max_jobs": 1}), ({"name": "q", "max_jobs": 5},))
    assert found == {"q1": 0, "q2": 0, "p1": 100, "late": 200}
    # a limit of something else does not come before it
    found = begins(jobs, tree(phys={"max_jobs": 1}), ({"name": "q", "max_gpus": 5},))
    assert found == {"q1": 0, "q2": 100, "p1": 200, "late": 300}


@pytest.mark.parametrize("own", ["max_jobs_per_user", "max_jobs_per_account"])
def test_jobs_per_user_or_account_of_the_qos_come_before_those_of_the_user(own):
    jobs = [job(f"q{k}", tenant="phys", user="ann", qos="q") for k in range(3)]
    found = begins(jobs, tree(phys={"max_jobs_per_user": 1}), ({"name": "q", own: 2},))
    assert found == {"q0": 0, "q1": 0, "q2": 100}


def two_types(name: str, **more: object) -> dict:
    return {"name": name, "submit_s": 0, "requested_gpus": 1, "times_s": {"V100": {1: 100.0}, "T4": {1: 100.0}}, **more}


@pytest.mark.parametrize("solver", ["fair-share", "easy", "lookahead", "srtf"])
def test_limits_of_a_gpu_type_count_its_gpus_alone(solver):
    nodes = [node("v", "V100", 4), node("t", "T4", 4)]
    policies = [{"solver": solver, "work_conserving": True} if solver == "lookahead" else {"solver": solver}]
    jobs = [two_types(f"j{k}", tenant="phys", requested_gpu_type="V100") for k in range(3)]
    jobs += [{"name": "t", "tenant": "phys", "submit_s": 0, "requested_gpus": 1, "times_s": {"T4": {1: 100.0}}}]
    for one in jobs[:3]:
        del one["times_s"]["T4"]  # only on V100
    found = begins(jobs, tree(lab={"max_gpus_of": {"v100": 2}}), nodes=nodes, policies=policies)
    assert found == {"j0": 0, "j1": 0, "j2": 100, "t": 0}
    found = begins(jobs, [], ({"name": "q", "max_gpus_per_user_of": {"V100": 1}},), nodes=nodes, policies=policies)
    assert set(found.values()) == {0}  # not their QOS
    mine = [{**one, "qos": "q", "user": "ann"} for one in jobs]
    found = begins(mine, [], ({"name": "q", "max_gpus_per_user_of": {"V100": 1}},), nodes=nodes, policies=policies)
    assert found == {"j0": 0, "j1": 100, "j2": 200, "t": 0}


@pytest.mark.parametrize("solver", ["fair-share", "lookahead"])
def test_a_job_that_may_have_another_type_gets_it_where_one_is_full(solver):
    nodes = [node("v", "V100", 4), node("t", "T4", 4)]
    policies = [{"solver": solver, "work_conserving": True} if solver == "lookahead" else {"solver": solver}]
    jobs = [two_types(f"j{k}", tenant="phys") for k in range(4)]
    document = {
        "workload": {"source": "jobs", "jobs": jobs}, "nodes": nodes, "policies": policies,
        "associations": tree(phys={"max_gpus_of": {"V100": 1, "T4": 2}}), "unused_nodes": {"state": None},
    }  # fmt: skip
    done, record = run(prepared(document))
    begun = dict(zip(record.jobs.name, record.jobs.began_s.tolist(), strict=True))
    assert sorted(begun.values()) == [0, 0, 0, 100]
    types = [done.controller.cluster.names[n] for n in record.segments.node[record.segments.from_s == 0].tolist()]
    assert sorted(types) == ["t", "t", "v"]


def test_gpus_of_one_job_limit_what_it_may_grow_to():
    one = {"name": "a", "tenant": "phys", "submit_s": 0, "times_s": {"V100": {1: 800.0, 2: 410.0, 4: 210.0, 8: 110.0}},
           "requested_gpus": 1, "due_s": 150, "tardiness_weight": 1.0}  # fmt: skip

    def gpus(associations: list[dict], qos: tuple[dict, ...] = ()) -> int:
        document = {
            "workload": {"source": "jobs", "jobs": [{**one, "qos": "q"}]}, "nodes": [node("n", gpus=8)],
            "associations": associations, "qos": list(qos), "policies": [{"solver": "lookahead"}],
        }  # fmt: skip
        return int(run(prepared(document))[1].segments.gpus.max())

    assert gpus([]) == 8
    assert gpus(tree(lab={"max_gpus_per_job": 4})) == 4
    assert gpus(tree(lab={"max_gpus_per_job": 4}, phys={"max_gpus_per_job": 2})) == 2
    assert gpus(tree(lab={"max_gpus_per_job": 2}), ({"name": "q", "max_gpus_per_job": 4},)) == 4
    assert gpus(tree(lab={"max_gpus_per_job_of": {"v100": 2}}), ({"name": "q", "max_gpus_per_job": 4},)) == 2


def test_what_limits_do_not_hold_for_is_counted():
    jobs = [
        job("large", gpus=4, tenant="phys", user="ann"), job("stranger", tenant="bio"),
        job("nobody", tenant="phys"), job("q", tenant="phys", user="ann", qos="q"),
    ]  # fmt: skip
    document = {
        "workload": {"source": "jobs", "jobs": jobs}, "nodes": [node("n", gpus=8)],
        "associations": tree(lab={"max_gpus": 2, "max_jobs_per_user": 1}),
    }  # fmt: skip
    assert prepared(document).treatments == {
        "of an account that is not declared: without its limits": 1,
        "asked for more than a limit of their association: without that limit": 1,
        "whose user is not known: without limits of users' associations": 1,
    }
    # where the QOS has the same limit, the account's does not matter
    document["qos"], jobs[0]["qos"] = [{"name": "q", "max_gpus": 6}], "q"
    assert "asked for more than a limit of their association: without that limit" not in prepared(document).treatments


def test_shares_are_weights_of_fair_share():
    jobs = [job(f"{t}{k}", tenant=t) for k in range(6) for t in ("phys", "chem")]
    associations = [{"account": "phys", "shares": 1}, {"account": "chem", "shares": 5}]
    more = {"nodes": [node("n", gpus=1)], "policies": [{"solver": "fair-share", "fair_share_weight": 100}]}
    found = begins(jobs, associations, **more)
    order = sorted(found, key=lambda name: found[name])
    assert sum(name.startswith("chem") for name in order[:6]) == 5
    weighed = {"tenants": [{"name": "phys", "weight": 1}, {"name": "chem", "weight": 5}], **more}
    assert begins(jobs, [], **weighed) == found
    turned = {"tenants": [{"name": "phys", "weight": 5}, {"name": "chem", "weight": 1}], **more}
    assert begins(jobs, associations, **turned) == begins(jobs, [], **turned)  # what is said of a tenant comes first


# -- no solver exceeds a limit: an independent replay


class Told:
    """Slurm's rules once more, read off the documents without any of ours."""

    def __init__(self, document: dict) -> None:
        self.jobs = {one["name"]: one for one in document["workload"]["jobs"]}
        self.qos = {one["name"]: one for one in document["qos"]}
        self.rows = document["associations"]

    def chain(self, one: dict) -> list[dict]:
        found = [row for row in self.rows if (row["account"], row.get("user")) == (one["tenant"], one["user"])]
        account = one["tenant"]
        while account:
            (row,) = [row for row in self.rows if row["account"] == account and not row.get("user")]
            found.append(row)
            account = row.get("parent")
        return found

    def limits(self, one: dict) -> Iterator[tuple[str, int, str, object]]:
        """Yield what limits a job: "jobs" or "gpus", how many, of which type, and of whom."""
        qos = self.qos.get(one["qos"], {})
        for suffix, whose in (("", ""), ("_per_account", one["tenant"]), ("_per_user", one["user"])):
            yield "jobs", qos.get(f"max_jobs{suffix}"), "", (one["qos"], suffix, whose)
            yield "gpus", qos.get(f"max_gpus{suffix}"), "", (one["qos"], suffix, whose)
            for kind, count in qos.get(f"max_gpus{suffix}_of", {}).items():
                yield "gpus", count, kind, (one["qos"], suffix, whose)
        chain = self.chain(one)
        for row in chain:
            whom = row["account"], row.get("user")
            if qos.get("max_jobs") is None:
                yield "jobs", row.get("max_jobs"), "", whom
            if qos.get("max_gpus") is None:
                yield "gpus", row.get("max_gpus"), "", whom
            for kind, count in row.get("max_gpus_of", {}).items():
                if kind not in qos.get("max_gpus_of", {}):
                    yield "gpus", count, kind, whom
        if qos.get("max_jobs_per_user") is None and qos.get("max_jobs_per_account") is None:
            own = next((row["max_jobs_per_user"] for row in chain if row.get("max_jobs_per_user") is not None), None)
            yield "jobs", own, "", (one["tenant"], one["user"])

    def counts(self, one: dict, whose: object) -> bool:
        if len(whose) == 3:
            name, suffix, who = whose
            own = {"": "", "_per_account": one["tenant"], "_per_user": one["user"]}[suffix]
            return bool(name) and one["qos"] == name and own == who
        account, user = whose
        if user:
            return (one["tenant"], one["user"]) == (account, user)
        return account in [row["account"] for row in self.chain(one)]

    def exempt(self, one: dict, what: str, limit: int, kind: str) -> bool:
        """Whether a job asks for more than the limit; of a type, only if it has no other."""
        gpus = max(one["requested_gpus"], min(g for row in one["times_s"].values() for g in row))
        certain = not kind or list(one["times_s"]) == [kind]
        return certain and (limit < 1 if what == "jobs" else gpus > limit)


@st.composite
def limited(draw: st.DrawFn) -> dict:
    document = draw(documents(solvers=("easy", "fair-share", "lookahead", "srtf", "edf")))
    limit, types = st.sampled_from([None, None, 1, 2, 3]), ["V100", "T4"]
    of_type = st.dictionaries(st.sampled_from(types), st.integers(1, 3), max_size=1)
    names = [f"max_{what}{whose}" for what in ("jobs", "gpus") for whose in ("", "_per_account", "_per_user")]
    document["qos"] = [
        {"name": name, **{field: draw(limit) for field in names}, "max_gpus_of": draw(of_type)} for name in ("p", "q")
    ]
    rows = [{"account": "root"}, {"account": "a", "parent": "root"}, {"account": "b", "parent": "a"}]
    rows += [{"account": "c", "parent": draw(st.sampled_from(["root", "b"]))}]
    rows += [{"account": draw(st.sampled_from(["a", "b"])), "user": "ann"}]
    for row in rows:
        row |= {field: draw(limit) for field in ("max_jobs", "max_gpus", "max_jobs_per_user")}
        row |= {"max_gpus_of": draw(of_type)}
    document["associations"] = draw(st.permutations(rows))
    for one in document["workload"]["jobs"]:
        one["qos"] = draw(st.sampled_from(["", "p", "q"]))
        one["user"] = draw(st.sampled_from(["ann", "bob"]))
    return document


def exceeded(document: dict, problem: Prepared, record: Record) -> list[str]:
    """Return every start beyond a limit."""
    told, found = Told(document), []
    held: dict[tuple[str, float, float], tuple[int, str]] = {}
    s = record.segments
    for j, n, gpus, a, b in zip(
        s.job.tolist(), s.node.tolist(), s.gpus.tolist(), s.from_s.tolist(), s.to_s.tolist(), strict=True
    ):
        name = record.jobs.name[j]
        kind = problem.cluster.classes[problem.cluster.klass[n]].gpu_type
        before = held.get((name, a, b), (0, kind))
        held[name, a, b] = before[0] + gpus, kind
    for (name, a, b), (gpus, kind) in held.items():
        one = told.jobs[name]
        if any(other == name and end == a and had == (gpus, kind) for (other, _, end), had in held.items()):
            continue  # it only went on
        for what, limit, of_type, whose in told.limits(one):
            if limit is None or (of_type and of_type != kind) or told.exempt(one, what, limit, of_type):
                continue
            use = 0
            for (other, c, d), (many, on) in held.items():
                its = told.jobs[other]
                bound = (what, limit, of_type, whose) in list(told.limits(its))
                there = c < a < d or (c == a and d > a and bound)
                if there and told.counts(its, whose) and (not of_type or on == of_type) and not (
                    bound and told.exempt(its, what, limit, of_type)
                ):  # fmt: skip
                    use += 1 if what == "jobs" else many
            if use > limit and b > a:
                found.append(f"{name} at {a}: {use} of {limit} {what} {of_type} of {whose}")
    return found


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(limited())
def test_no_solver_exceeds_a_limit_and_every_job_ends(document: dict) -> None:
    problem = prepared(document)
    _, record = run(problem)
    assert (record.jobs.ended_s >= record.jobs.submit_s).all()
    assert exceeded(document, problem, record) == []


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(limited(), st.randoms())
def test_the_order_of_the_rows_does_not_matter(document: dict, random) -> None:
    _, one = run(prepared(document))
    turned = {name: random.sample(document[name], len(document[name])) for name in ("qos", "associations")}
    _, other = run(prepared({**document, **turned}))
    assert one.jobs.began_s.tolist() == other.jobs.began_s.tolist()
    assert one.jobs.ended_s.tolist() == other.jobs.ended_s.tolist()


@pytest.mark.slow
def test_the_replay_finds_what_exceeds_a_limit():
    """Without limits in force, the same check finds them exceeded."""
    jobs = [job(f"j{k}", tenant="phys", user="ann", qos="") for k in range(3)]
    document = {
        "workload": {"source": "jobs", "jobs": jobs}, "nodes": [node("n", gpus=8)], "qos": [],
        "associations": tree(lab={"max_jobs": 2}), "policies": [{"solver": "easy"}],
    }  # fmt: skip
    problem = prepared({**document, "associations": []})
    assert exceeded(document, problem, run(problem)[1])
    problem = prepared(document)
    assert exceeded(document, problem, run(problem)[1]) == []


def test_weights_of_a_scenario_without_associations_are_those_of_its_tenants():
    document = {
        "workload": {"source": "jobs", "jobs": [job("a", tenant="phys")]}, "nodes": [node("n")],
        "tenants": [{"name": "phys", "weight": 3}],
    }  # fmt: skip
    assert tenant_weights(prepared(document).scenario) == {"phys": 3}
