"""Faults of GPUs drain nodes: the rule, and a controller with a Prometheus of our own and a real one."""

from __future__ import annotations

import json
import threading
import time
import urllib.parse
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("sqlalchemy")
pytest.importorskip("prometheus_client")

from commonwatt.cli.cluster import _state
from commonwatt.control.scheduling import NodeCondition
from commonwatt.controlplane.health import (
    FaultKind,
    FaultResponse,
    GpuFault,
    HostNames,
    Judgement,
    judge,
    plan,
    read_health,
    sentence_of,
)
from commonwatt.controlplane.preflight import all_checks
from commonwatt.controlplane.standby import StandbyView
from commonwatt.controlplane.wiring import read_config
from commonwatt.model.errors import InputError
from commonwatt.model.live import ECC, TEMPERATURE, XID, HealthSpec
from commonwatt.service.metrics import metrics_page
from commonwatt.service.middleware import HttpTimes
from commonwatt.service.serializers import node_states
from commonwatt.store.records import JobStatus, RequestKind
from tests.controlplane.bench import Bench, node
from tests.controlplane.chaos import config_in
from tests.deploy.scraping import PATIENCE_S, prometheus, served

URL = "http://127.0.0.1:9090"
RULE = HealthSpec(prometheus=URL, hot_c=90, hot_for_s=60)


# -- the rule


def sentences(found: Judgement) -> list[str]:
    return [f"{node}: {fault.sentence}" for (node, *_), fault in sorted(found.faults.items())]


def test_readings_give_faults():
    readings = {
        ("a", "0", XID): 0.0, ("a", "1", XID): 79.0, ("a", "2", XID): 31.0, ("a", "3", XID): 63.5,
        ("b", "0", ECC): 0.0, ("b", "1", ECC): 1.0, ("b", "2", ECC): 12.0,
    }  # fmt: skip
    found = judge(readings, RULE, {}, 0.0)
    assert sentences(found) == [
        "a: GPU 1 reports Xid 79 (GPU has fallen off the bus)",
        "b: GPU 1 reports 1 uncorrected ECC error",
        "b: GPU 2 reports 12 uncorrected ECC errors",
    ]
    assert found.nodes == 2
    assert len(found.well) == 4


def test_only_what_is_asked_for_counts():
    rule = HealthSpec(prometheus=URL, xids=(13,), ecc_uncorrected=False)
    readings = {("a", "0", XID): 79.0, ("a", "1", XID): 13.0, ("a", "0", ECC): 3.0, ("a", "0", TEMPERATURE): 120.0}
    assert sentences(judge(readings, rule, {}, 0.0)) == ["a: GPU 1 reports Xid 13"]


def test_a_gpu_is_too_hot_after_a_while_and_a_gap_begins_anew():
    hot, since = {("a", "0", TEMPERATURE): 90.0}, {}
    said = []
    for at_s, readings in ((0, hot), (30, hot), (60, hot), (90, {}), (120, hot), (150, hot), (180, hot)):
        found = judge(readings, RULE, since, float(at_s))
        since = found.hot_since
        said.append(len(found.faults))
        assert not found.well
    assert said == [0, 0, 1, 0, 0, 0, 1]
    (fault,) = found.faults.values()
    assert fault.sentence == "GPU 0 has been at 90 °C or above for 60 s"
    cool = judge({("a", "0", TEMPERATURE): 89.9}, RULE, since, 200.0)
    assert (cool.faults, cool.hot_since, len(cool.well)) == ({}, {}, 1)


def test_many_faults_are_one_sentence():
    faults = [GpuFault(str(n), FaultKind.XID, 95.0) for n in range(8)]
    assert sentence_of(faults[:1]) == "GPU 0 reports Xid 95 (uncontained ECC error)"
    assert sentence_of(faults).endswith("GPU 2 reports Xid 95 (uncontained ECC error); and 5 more faults")


@pytest.mark.parametrize(
    ("label", "found"),
    [
        ("gpu-1", "gpu-1"), ("gpu-1.example.org", "gpu-1"), ("gpu-1:9400", "gpu-1"), ("gpu-2", "gpu-2.site"),
        ("gpu-2.site", "gpu-2.site"), ("gpu-2.other", "gpu-2.site"), ("mixed", "mixed:A100"), ("same", None),
        ("same.x", "same.x"), ("10.0.0.1", None), ("10.0.0.1:9400", None), ("", None), ("gpu", None),
    ],
)  # fmt: skip
def test_names_of_nodes(label, found):
    names = ("gpu-1", "gpu-2.site", "mixed:A100", "mixed:T4", "same.x", "same.y", "10")
    hosts = HostNames.of(names)
    assert hosts.find(label) == found
    assert hosts.nodes["mixed:A100"] == ("mixed:A100", "mixed:T4")


hosts = st.sampled_from([f"n{k}" for k in range(6)])
places = st.tuples(hosts, st.sampled_from("01"), st.sampled_from([FaultKind.XID, FaultKind.ECC]))
faults = st.dictionaries(places, st.integers(1, 3), max_size=8)


@pytest.mark.slow
@given(st.lists(st.tuples(faults, st.sets(hosts, max_size=2), st.booleans()), max_size=8), st.integers(1, 6))
def test_faults_never_drain_too_many_nor_twice(looks, limit):
    """Whatever is read, undrained, or tried dry: the budget holds, and a fault that drained a node does so once."""
    drained, seen, done = set(), {}, set()
    for read, undrained, dry in looks:
        drained -= undrained
        values = {place: GpuFault(place[1], place[2], float(value)) for place, value in read.items()}
        well = frozenset(place for place in seen if place not in values)
        done -= {entry for entry in done if entry[0] in well}
        before = frozenset(drained)

        def room(host, others, before=before):
            return len(before | {host, *others}) <= limit

        made = plan(Judgement(values, well), seen, drained, room, dry=dry)
        for host, response, fresh in made.new:
            assert fresh
            if host in made.drained:
                assert not dry
                assert response is FaultResponse.DRAINED
                assert not {(place, values[place].value) for place in values if place[0] == host} <= done
        drained |= made.drained
        assert len(drained) <= limit
        for place, fault in values.items():
            assert made.handled[place][0] == fault.value
            if made.handled[place][1] == FaultResponse.DRAINED:
                done = {entry for entry in done if entry[0] != place} | {(place, fault.value)}
        again = plan(Judgement(values, well), made.handled, drained, lambda *_: False, dry=dry)
        assert (again.new, again.drained, again.handled) == ([], frozenset(), made.handled)
        seen = made.handled


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prometheus": "localhost:9090"}, "live.health.prometheus"),
        ({"prometheus": "http://me:secret@host"}, "live.health.prometheus"),
        ({}, "live.health.prometheus"),
        ({"prometheus": URL, "every_s": 0}, "live.health.every_s"),
        ({"prometheus": URL, "xids": [0]}, "live.health.xids"),
        ({"prometheus": URL, "at_most": 0}, "live.health.at_most"),
        ({"prometheus": URL, "node_label": "a-b"}, "live.health.node_label"),
        ({"prometheus": URL, "xids": [], "ecc_uncorrected": False}, "something to watch"),
        ({"prometheus": URL, "xid": [79]}, "live.health.xid"),
    ],
)
def test_bad_configurations_are_refused(tmp_path, given, said):
    with pytest.raises(InputError, match=said):
        read_config(config_in(tmp_path, live={"health": given}))


# -- a controller


class Exporter:
    """What a Prometheus would answer about GPUs; *broken*: what it answers instead."""

    def __init__(self) -> None:
        self.values: dict[str, dict[tuple[str, str], float]] = {XID: {}, ECC: {}, TEMPERATURE: {}}
        self.broken: tuple[int, bytes] | None = None
        self.url = ""

    def answer(self, query: str) -> tuple[int, bytes]:
        if self.broken is not None:
            return self.broken
        result = [
            {"metric": {"__name__": query, "Hostname": host, "gpu": gpu}, "value": [time.time(), str(value)]}
            for (host, gpu), value in self.values[query].items()
        ]
        return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


@contextmanager
def exporting():
    exporter = Exporter()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            status, body = exporter.answer(form["query"][0])
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    exporter.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield exporter
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def exporter():
    with exporting() as made:
        yield made


def rule_of(exporter, **more) -> dict:
    return {"default_time_limit_s": 5, "health": {"prometheus": exporter.url, **more}}


@pytest.fixture
def bench(tmp_path, opened, exporter):
    def make(rule=None, live=None, nodes=4) -> Bench:
        settings = rule_of(exporter, **(rule or {})) | (live or {})
        return opened(Bench(tmp_path, nodes=[node(f"n{k}") for k in range(nodes)], live=settings))

    return make


def look(b: Bench) -> None:
    """One look at Prometheus, and what the controller makes of it."""
    b.live.health.look()
    b.advance(10.0)
    b.settle()


def drained(b: Bench) -> dict[str, tuple[str, str]]:
    return {n.name: (n.drain_reason, n.cause) for n in b.snapshot().nodes if n.drained}


def told(b: Bench) -> list[tuple[str, str]]:
    kinds = {"drained", "would-drain", "gpu-fault"}
    return [(event.kind, event.sentence) for event in b.live.store.events() if event.kind in kinds]


BUS = "GPU 3 reports Xid 79 (GPU has fallen off the bus)"


def test_a_fault_drains_its_node_once(bench, exporter, opened):
    b = bench()
    first, second = b.submit(10_000.0, gpus=2), b.submit(10_000.0, gpus=2)
    b.look()
    exporter.values[XID] = {(f"n{k}.example.org", "3"): 0.0 for k in range(4)}
    look(b)
    assert drained(b) == {}
    exporter.values[XID]["n0.example.org", "3"] = 79.0
    look(b)
    assert drained(b) == {"n0": ("gpu-xid", BUS)}
    assert told(b) == [("drained", f"drained: {BUS}")]
    (event,) = (event for event in b.live.store.events() if event.kind == "drained")
    assert (event.nodes, event.reason, event.job) == (("n0",), "gpu-xid", None)
    assert b.reconciler.controller.scheduling.nodes(NodeCondition.DRAINED) == {0}
    assert {b.status(first), b.status(second)} == {JobStatus.RUNNING}  # they go on
    others = [b.submit(10_000.0, gpus=2) for _ in range(2)]
    b.settle()
    assert "n0" not in {name for job in others for name in b.row(job).nodes}
    b.ask(RequestKind.UNDRAIN, node="n0")
    look(b)
    look(b)
    assert drained(b) == {}
    b.begin()  # and after a restart
    look(b)
    b.close()
    b.open()
    look(b)
    assert drained(b) == {}
    assert len(told(b)) == 1
    exporter.values[XID]["n0.example.org", "3"] = 95.0
    look(b)
    assert drained(b) == {"n0": ("gpu-xid", "GPU 3 reports Xid 95 (uncontained ECC error)")}
    b.close()
    b.open()
    look(b)
    assert drained(b) == {"n0": ("gpu-xid", "GPU 3 reports Xid 95 (uncontained ECC error)")}
    assert len(told(b)) == 2


def test_the_exporter_forgets_and_the_same_error_comes_again(bench, exporter):
    b = bench()
    for value, found in ((79.0, 1), (0.0, 1), (79.0, 2)):
        exporter.values[XID]["n1", "0"] = value
        look(b)
        assert len(told(b)) == found
        b.ask(RequestKind.UNDRAIN, node="n1")
        b.settle()
    exporter.values[XID].clear()  # nothing is read: the fault stays accepted
    look(b)
    exporter.values[XID]["n1", "0"] = 79.0
    look(b)
    assert (len(told(b)), drained(b)) == (2, {})


def test_a_higher_count_of_ecc_errors_is_a_new_fault(bench, exporter):
    b = bench()
    for count, found in ((2.0, 1), (2.0, 1), (3.0, 2), (float("nan"), 2), (2.0**31 - 16, 2), (3.0, 2)):
        exporter.values[ECC]["n1", "0"] = count
        look(b)
        assert len(told(b)) == found
        b.ask(RequestKind.UNDRAIN, node="n1")
        b.settle()


def test_a_fault_on_a_node_an_operator_drained_is_said_and_accepted_with_the_undrain(bench, exporter):
    b = bench()
    b.ask(RequestKind.DRAIN, node="n2")
    b.settle()
    exporter.values[XID]["n2", "3"] = 79.0
    look(b)
    assert drained(b) == {"n2": ("operator", "")}
    assert told(b) == [("gpu-fault", f"it is drained already: {BUS}")]
    b.ask(RequestKind.UNDRAIN, node="n2")
    look(b)
    assert drained(b) == {}


@pytest.mark.parametrize(("at_most", "limit"), [(0.1, 1), (0.5, 2), (0.99, 3), (1.0, 4)])
def test_a_bad_exporter_does_not_empty_the_cluster(bench, exporter, at_most, limit):
    b = bench({"at_most": at_most})
    exporter.values[XID] = {(f"n{k}", "3"): 79.0 for k in range(4)}
    for _ in range(3):
        look(b)
    assert list(drained(b)) == [f"n{k}" for k in range(limit)]
    left = f"it is not drained, as faults may drain at most {limit} node{'' if limit == 1 else 's'}: {BUS}"
    assert told(b) == [("drained", f"drained: {BUS}")] * limit + [("gpu-fault", left)] * (4 - limit)
    b.begin()
    look(b)
    assert len(told(b)) == 4
    b.ask(RequestKind.UNDRAIN, node="n0")
    look(b)
    look(b)
    assert list(drained(b)) == [f"n{k}" for k in range(1, min(4, limit + 1))]  # as there is room


def test_without_an_answer_all_stays_as_it_is(bench, exporter, caplog):
    b = bench()
    exporter.values[XID] = {("n1", "3"): 79.0, ("stranger", "0"): 79.0}
    look(b)
    look(b)
    ignored = [record for record in caplog.records if record.message == "metrics of GPUs on other nodes are ignored"]
    assert [record.nodes for record in ignored] == [["stranger"]]
    assert b.snapshot().health.answers is True
    nonsense = [
        (500, b"no"), (200, b"<html>"), (200, b"[]"), (200, b'{"status": "success", "data": {}}'),
        (200, b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": 3}]}}'),
        (200, b'{"status": "success", "data": {"resultType": "vector", "result": [3]}}'),
        (200, b'{"status": "success", "data": {"resultType": "vector", "result": null}}'),
        (200, b'{"status": "success", "data": {"resultType": "matrix", "result": []}}'), (302, b""), (200, b"\xff"),
    ]  # fmt: skip
    for answer in nonsense:
        exporter.broken = answer
        look(b)
        assert list(drained(b)) == ["n1"]
        assert b.snapshot().health.answers is False
    b.live.health.rule = b.live.health.rule.model_copy(update={"prometheus": "http://127.0.0.1:1"})
    look(b)
    assert len([r for r in caplog.records if r.message == "GPU health is unknown: nodes stay as they are"]) == 1
    b.live.health.rule = b.live.health.rule.model_copy(update={"prometheus": exporter.url})
    exporter.broken = None
    look(b)
    assert b.snapshot().health.answers is True
    assert (len(told(b)), list(drained(b))) == (1, ["n1"])


@pytest.mark.slow
def test_a_dry_run_only_says_it_and_drains_when_it_is_over(bench, exporter):
    b = bench(live={"mode": "dry-run"})
    exporter.values[XID]["n1", "3"] = 79.0
    look(b)
    look(b)
    assert drained(b) == {}
    assert told(b) == [("would-drain", f"it would be drained, but this is a dry run: {BUS}")]
    b.ask(RequestKind.MODE, value="live")
    look(b)
    assert drained(b) == {"n1": ("gpu-xid", BUS)}


def test_parts_of_a_host_are_drained_together(tmp_path, opened, exporter):
    parts = [node(f"m:{kind}", kind, host="m") for kind in ("V100", "T4")]
    b = opened(Bench(tmp_path, nodes=[*parts, node("n")], live=rule_of(exporter)))
    exporter.values[XID]["m", "3"] = 79.0
    look(b)
    assert drained(b) == {"m:T4": ("gpu-xid", BUS), "m:V100": ("gpu-xid", BUS)}


def test_a_slow_prometheus_does_not_hold_up_the_controller(bench, exporter):
    b, go_on = bench(), threading.Event()
    answer = exporter.answer
    exporter.answer = lambda query: (go_on.wait(30), answer(query))[1]
    exporter.values[XID]["n1", "3"] = 79.0
    b.live.health._active = lambda: True
    b.live.health.start()
    try:
        began_s = time.monotonic()
        b.settle()
        assert time.monotonic() < began_s + 10
        assert drained(b) == {}
        go_on.set()
        until_s = time.monotonic() + 30
        while not drained(b) and time.monotonic() < until_s:
            b.advance(10.0)
            b.look()
            time.sleep(0.01)
        assert drained(b) == {"n1": ("gpu-xid", BUS)}
    finally:
        b.live.health.stop()


def test_check_says_which_nodes_have_metrics(tmp_path, exporter):
    path = config_in(tmp_path, live=rule_of(exporter))
    config = read_config(path)

    def lines():
        return [(line.verdict, line.found) for line in all_checks(config, path) if line.what == "gpu health"]

    exporter.values[XID] = {("n-1", "0"): 0.0, ("x", "0"): 0.0}
    assert lines() == [
        (
            "warning",
            f"{exporter.url} answers, with GPU metrics of 1 of 2 nodes; those of others are ignored (x); none of n-2",
        ),
        ("warning", f"no node has {ECC}"),
    ]
    exporter.values[XID] = exporter.values[ECC] = {("n-1", "0"): 0.0, ("n-2", "0"): 0.0}
    assert lines() == [("ok", f"{exporter.url} answers, with GPU metrics of 2 of 2 nodes")]
    exporter.values[XID] = {("n-1", "0"): 0.0, ("n-2", "3"): 79.0}
    assert lines()[1:] == [("warning", f"1 fault: n-2: {BUS}")]
    exporter.broken = (503, b"")
    ((verdict, found),) = lines()
    assert verdict == "warning"
    assert "HTTP 503" in found


def test_api_commands_metrics_and_a_standby_say_why(bench, exporter):
    b = bench({"at_most": 0.5})
    b.ask(RequestKind.DRAIN, node="n0")
    exporter.values[XID] = {(f"n{k}", "3"): 79.0 for k in (1, 2, 3)}
    look(b)
    states = node_states(b.snapshot(), None)
    shown = [(state.drained, state.drain_reason, state.cause) for state in states]
    assert shown == [(True, "operator", ""), (True, "gpu-xid", BUS), (True, "gpu-xid", BUS), (False, "", "")]
    assert [_state(state) for state in states] == ["on, drained", *[f"on, drained: {BUS}"] * 2, "on"]
    view = StandbyView(b.live.store, b.supervisor._store, b.live.cluster, "simulated").look(0.0)
    assert [(n.drained, n.drain_reason, n.cause) for n in view.nodes] == shown
    page = metrics_page(
        snapshot=b.snapshot, store=b.live.store, counts=b.supervisor.counters.counts, http=HttpTimes(), currency="EUR"
    )
    text = page()[0].decode()
    for line in ("gpu_health_up 1.0", "gpu_health_nodes 3.0", "gpu_faults 3.0", "nodes_drained_by_faults 2.0"):
        assert f"\ncommonwatt_{line}\n" in text


def test_webhooks_can_have_faults(tmp_path):
    hook = {"url": "http://127.0.0.1:1", "kinds": ["drained", "gpu-fault"]}
    config = read_config(config_in(tmp_path, live={"notify": {"webhooks": [hook]}}))
    assert config.live.notify.webhooks[0].kinds == ("drained", "gpu-fault")


def test_without_health_nothing_is_asked(tmp_path, opened):
    b = opened(Bench(tmp_path, nodes=[node("n")]))
    b.settle()
    assert b.live.health is None
    assert b.snapshot().health is None


def eventually(check) -> bool:
    """Whether *check* comes true in time: while a reading of the exporter fails, Prometheus shows none."""
    until = time.monotonic() + PATIENCE_S
    while not check():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.long
def test_a_real_prometheus_that_reads_an_exporter(tmp_path, opened):
    """An exporter of ours that writes as DCGM's does, with series of MIG instances and pods."""
    xid = {"n0": 0, "n1": 0}

    def page() -> tuple[bytes, str]:
        lines = ["# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.",
                 "# TYPE DCGM_FI_DEV_XID_ERRORS gauge"]  # fmt: skip
        labels = 'UUID="GPU-{0}",pci_bus_id="00000000:00:1E.0",device="nvidia{0}",modelName="NVIDIA A100"'
        for name, value in xid.items():
            for gpu in range(2):
                error = value if gpu else 0
                for part in ("1", "2"):
                    lines.append(
                        f'DCGM_FI_DEV_XID_ERRORS{{gpu="{gpu}",{labels.format(gpu)},GPU_I_ID="{part}",'
                        f'Hostname="{name}.site.example",err_code="{error}",container="",namespace="",pod=""}} {error}'
                    )
        lines.append("# TYPE DCGM_FI_DEV_ECC_DBE_VOL_TOTAL counter")
        lines += [f'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{gpu="0",Hostname="{name}.site.example"}} 0' for name in xid]
        return ("\n".join(lines) + "\n").encode(), "text/plain; version=0.0.4"

    with served(page) as port, prometheus(tmp_path, f"127.0.0.1:{port}") as running:
        assert running.await_result("DCGM_FI_DEV_XID_ERRORS")
        url = f"http://127.0.0.1:{running.port}"
        settings = {"default_time_limit_s": 5, "health": {"prometheus": url}}
        b = opened(Bench(tmp_path, nodes=[node("n0"), node("n1")], live=settings))
        rule, hosts = b.live.health.rule, b.live.health.hosts
        assert eventually(lambda: len(read_health(rule, hosts).readings) == 6)
        assert read_health(rule, hosts).others == ()
        look(b)
        assert drained(b) == {}
        xid["n1"] = 79
        fault = "GPU 1 reports Xid 79 (GPU has fallen off the bus)"
        assert eventually(lambda: look(b) or drained(b) == {"n1": ("gpu-xid", fault)})
        b.ask(RequestKind.UNDRAIN, node="n1")
        look(b)
        assert drained(b) == {}
        xid["n1"] = 48
        fault = "GPU 1 reports Xid 48 (uncorrected ECC error)"
        assert eventually(lambda: look(b) or drained(b) == {"n1": ("gpu-xid", fault)})
