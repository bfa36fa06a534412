"""The Python client against a real server, and against one that fails."""

from __future__ import annotations

import pytest

httpx = pytest.importorskip("httpx")

from commonwatt.client import Client, find_settings  # noqa: E402
from commonwatt.model.errors import InputError, ServiceError  # noqa: E402
from commonwatt.model.job_file import JobFile  # noqa: E402
from commonwatt.service.server import bound  # noqa: E402
from tests.service.made import job  # noqa: E402


@pytest.mark.slow
def test_everything_a_client_can_ask(served):
    with Client() as ada, Client(token=served.service.tokens["operator"]) as operator:
        assert (ada.whoami().tenant, operator.whoami().operator) == ("ada", True)
        first = ada.submit(job(gpus=2))
        second = ada.submit(JobFile(**job(name="other")), key="k")
        assert ada.submit(job(name="other"), key="k").id == second.id
        for key in ("schl\u00fcssel", "two words", "k" * 129):  # a header, which cannot hold any text
            with pytest.raises(InputError, match="ASCII") as refused:
                ada.submit(job(name="third"), key=key)
            assert (refused.value.field, refused.value.value) == ("key", key)
        assert [j.id for j in ada.jobs(page=1)] == [first.id, second.id]
        assert [j.id for j in ada.jobs(page=1, newest_first=True)] == [second.id, first.id]
        served.service.obey()
        assert ada.explain(first.id).reason == "no-room"
        assert ada.job(first.id).gpus_asked == 2
        assert [e.kind for e in ada.events(job=first.id)] == ["waits"]
        assert [e.job for e in ada.events(page=1)] == [first.id, second.id]
        ada.hold(first.id)
        served.service.obey()
        assert ada.job(first.id).held
        assert ada.explain(first.id).reason == "held"
        ada.release(first.id)
        ada.cancel(first.id)
        served.service.obey()
        seen = []
        assert ada.wait(first.id, on_change=lambda j: seen.append(j.status)).status == "cancelled"
        assert seen == ["cancelled"]
        with pytest.raises(ServiceError, match="has not ended") as late:
            ada.wait(second.id, timeout_s=0.2, poll_s=0.05)
        assert late.value.status == 408
        assert operator.drain("v-1").name == "v-1"
        operator.undrain("v-1")
        assert operator.set_mode("dry-run").mode == "dry-run"
        operator.set_mode("live")
        served.service.obey()
        assert operator.cluster().mode == "live"
        assert len(operator.nodes().nodes) == 3
        assert operator.set_tenant("a b%c", 3.0).weight == 3.0
        assert [t.name for t in operator.tenants().tenants] == ["a b%c", "ada", "bob"]
        assert operator.ledger().currency == "EUR"
        assert len(operator.samples().samples) == 4
        made = operator.add_token("a b%c", "x")
        with Client(token=made.token) as other:
            assert other.whoami().tenant == "a b%c"
            operator.revoke(made.id)
            with pytest.raises(ServiceError) as gone:
                other.whoami()
        assert gone.value.status == 401
        assert made.id in [t.id for t in operator.tokens().tokens]
        assert [line.action for line in operator.audit(page=2)][-2:] == ["add_token", "revoke"]


def test_refusals_are_errors_of_ours():
    with Client() as ada:
        with pytest.raises(InputError, match=r"field 'epochs': got '0', expected a number, 1 or more"):
            ada.submit(job(epochs=0))
        with pytest.raises(InputError, match="GPU type of the cluster") as wrong:
            ada.submit(job(gpu_type="H100"))
        assert (wrong.value.field, wrong.value.value) == ("gpu_type", "H100")
        with pytest.raises(ServiceError, match="there is no job 999") as missing:
            ada.job(999)
        assert missing.value.status == 404
        with pytest.raises(ServiceError, match="only operators") as forbidden:
            ada.tokens()
        assert forbidden.value.status == 403


class Unreliable(httpx.BaseTransport):
    """Sends on what it gets, then loses the answer, or fails before, as it is told."""

    def __init__(self, *faults: object) -> None:
        self.faults, self.sent = list(faults), 0
        self.real = httpx.HTTPTransport()

    def close(self) -> None:
        self.real.close()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, httpx.ConnectError | httpx.Response):
            if isinstance(fault, Exception):
                raise fault
            return fault
        self.sent += 1
        response = self.real.handle_request(request)
        if fault is not None:
            response.read()
            raise fault
        return response


@pytest.fixture
def client():
    """Make clients of a server that fails as told: the client, what it sent, how long it paused."""
    made = []

    def make(*faults: object, retries: int = 5, **more: str) -> tuple[Client, Unreliable, list[float]]:
        transport, pauses = Unreliable(*faults), []
        made.append(Client(transport=transport, retries=retries, **more))
        made[-1]._link._sleep = pauses.append
        return made[-1], transport, pauses

    yield make
    for each in made:
        each.close()


def test_a_lost_answer_is_no_second_job(served, client):
    before = len(served.service.store.jobs())
    made, transport, _ = client(httpx.ReadError("reset"), httpx.RemoteProtocolError("gone"))
    made.submit(job(name="lost"))
    assert transport.sent == 3
    assert len(served.service.store.jobs()) == before + 1


def test_what_must_not_be_done_twice_is_not(served, client):
    before = len(served.service.store.tokens())
    made, transport, _ = client(httpx.ReadError("reset"), token=served.service.tokens["operator"])
    with pytest.raises(ServiceError, match="the request may have been carried out"):
        made.add_token("ada")
    assert (transport.sent, len(served.service.store.tokens())) == (1, before + 1)
    made, transport, _ = client(httpx.ConnectError("refused"), token=served.service.tokens["operator"])
    made.add_token("ada")
    assert (transport.sent, len(served.service.store.tokens())) == (1, before + 2)


def test_it_waits_as_long_as_it_is_told(client):
    made, transport, pauses = client(
        httpx.Response(429, headers={"Retry-After": "3"}), httpx.Response(503, headers={"Retry-After": "5"}),
        httpx.ConnectError("refused"),
    )  # fmt: skip
    assert made.whoami().tenant == "ada"
    assert pauses == [3.0, 5.0, pytest.approx(0.8)]
    assert transport.sent == 1


def test_it_gives_up(client):
    made, _, pauses = client(*[httpx.ConnectError("refused")] * 9, retries=2)
    with pytest.raises(ServiceError, match=r"cannot reach http://127\.0\.0\.1:\d+: refused$") as error:
        made.whoami()
    assert (error.value.status, len(pauses)) == (0, 2)


def test_waiting_goes_on_while_the_server_is_away(served, client):
    made, transport, _ = client(retries=0)
    number = made.submit(job(name="awaited")).id
    served.service.obey()
    transport.faults += [httpx.ConnectError("refused"), httpx.ConnectError("refused"), httpx.Response(429)]
    told, seen = [], []

    def change(state):
        if not seen:
            made.cancel(number)
            served.service.obey()
            transport.faults += [httpx.Response(502), httpx.Response(503)]
        seen.append(state.status)

    ended = made.wait(number, poll_s=0.0, on_change=change, on_away=told.append)
    assert (ended.status, seen, transport.faults) == ("cancelled", ["waiting", "cancelled"], [])
    assert [why.partition(": ")[2] or why.partition(" answers ")[2] for why in told] == [
        "refused",
        "with status 502; it is probably not a commonwatt server",
    ]


def test_waiting_for_a_server_that_stays_away_ends_with_its_time(client, caplog):
    made, _, _ = client(*[httpx.ConnectError("refused")] * 99, retries=0)
    with pytest.raises(
        ServiceError, match=r"job 1 has not ended after 0 s: cannot reach http://[^ ]+: refused"
    ) as late:
        made.wait(1, timeout_s=0.0, poll_s=0.0)
    assert late.value.status == 408
    assert [record.getMessage().split(": ")[-1] for record in caplog.records] == ["refused"]
    with pytest.raises(ServiceError, match="there is no job 999"):
        client()[0].wait(999)


@pytest.mark.parametrize(
    ("status", "more"),
    [
        (200, {"text": "<html>"}),
        (200, {"json": {"x": 1}}),
        (404, {"text": "nginx"}),
        (302, {"headers": {"location": "/"}}),
    ],
)
def test_something_else_answers(client, status, more):
    made, _, _ = client(httpx.Response(status, **more))
    with pytest.raises(ServiceError, match="not a commonwatt"):
        made.whoami()


@pytest.mark.parametrize(
    "url", ["", "localhost:8470", "ftp://x", "http://", "http://x:99999", "http://u:p@x", "http://x/?a=b", "http://x y"]
)
def test_addresses_that_are_none(url):
    if url:
        with pytest.raises(InputError) as error:
            find_settings(url, environment={})
        assert "u:p" not in str(error.value)
    else:
        assert find_settings(url, environment={"HOME": "/nonexistent"}).url == "http://127.0.0.1:8470"


def test_where_settings_come_from(tmp_path):
    folder = tmp_path / "commonwatt"
    folder.mkdir()
    file = folder / "client.yaml"
    file.write_text("url: http://there:1/\ntoken: cw_file\n")
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    file.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        find_settings(environment=env)
    file.chmod(0o600)
    assert find_settings(environment=env) == find_settings("http://there:1", "cw_file", env)
    assert find_settings(environment=env | {"COMMONWATT_TOKEN": "cw_env"}).token == "cw_env"
    other = find_settings("http://elsewhere:2", environment=env)
    assert (other.url, other.token) == ("http://elsewhere:2", None)  # the file's token is not for that server
    assert "cw_file" not in repr(find_settings(environment=env))
    with pytest.raises(InputError) as error:
        find_settings(environment=env | {"COMMONWATT_TOKEN": "a b\n"})
    assert "a b" not in str(error.value)


def test_of_several_servers_the_next_one_is_asked_where_one_is_away(served):
    free = bound("127.0.0.1", 0)
    away = f"http://127.0.0.1:{free.getsockname()[1]}"
    free.close()
    with Client(f"{away},{served.url}") as client:
        assert client.whoami().tenant == "ada"
        assert client.url == served.url
        assert client.submit(job()).status == "waiting"  # not carried out twice: it never arrived at the first
    with Client(f"{away}, {away}/", retries=1) as client, pytest.raises(ServiceError, match="cannot reach"):
        client.whoami()
    with pytest.raises(InputError, match="a URL such as"):
        find_settings(f"{away},")
