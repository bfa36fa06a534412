"""Mail and webhooks: each notification arrives, in order, also after failures and restarts; nobody is told too much."""

from __future__ import annotations

import hashlib
import hmac
import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("httpx")

from commonwatt.controlplane.notifications import SETTING, Notifier, mail_warning
from commonwatt.controlplane.wiring import open_live
from commonwatt.model.errors import InputError
from commonwatt.model.job_file import JobFile
from commonwatt.model.live import NotifySpec
from tests.cli.console import run
from tests.controlplane.bench import Bench
from tests.controlplane.chaos import config_in
from tests.engines.waiting import until

MAIL = {"sender": "gpus@example.org", "domains": ["example.org"]}


class Hook(ThreadingHTTPServer):
    """A program that is told; ``answers`` are the next statuses, then 200."""

    def __init__(self):
        self.got, self.answers = [], []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = hook.answers.pop(0) if hook.answers else 200
                hook.got.append((status, json.loads(body), body, self.headers.get("X-Commonwatt-Signature")))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/hook"

    @property
    def told(self):
        return [(document["kind"], document["name"]) for status, document, _, _ in self.got if status == 200]


class Post(socketserver.ThreadingTCPServer):
    """An SMTP server; recipients in ``unknown`` are refused."""

    allow_reuse_address, daemon_threads = True, True

    def __init__(self):
        self.got, self.unknown = [], set()
        post = self

        class Handler(socketserver.StreamRequestHandler):
            def say(self, text):
                self.wfile.write(text.encode() + b"\r\n")

            def handle(self):
                self.say("220 here")
                lines, to = None, []
                while line := self.rfile.readline():
                    text = line.decode().rstrip("\r\n")
                    if lines is not None:
                        if text == ".":
                            post.got.append((tuple(to), "\n".join(lines)))
                            lines, to = None, []
                            self.say("250 taken")
                        else:
                            lines.append(text)
                        continue
                    word = text.split(" ", 1)[0].upper()
                    if word == "RCPT":
                        address = text.partition("<")[2].partition(">")[0]
                        to.append(address)
                        self.say("550 nobody" if address in post.unknown else "250 yes")
                    elif word == "DATA":
                        lines = []
                        self.say("354 go on")
                    elif word == "QUIT":
                        self.say("221 bye")
                        return
                    else:
                        self.say("250 yes")

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def told(self):
        """Recipient and subject of each mail."""
        subjects = (next(line for line in text.split("\n") if line.startswith("Subject: ")) for _, text in self.got)
        return [(to[0], subject.removeprefix("Subject: ")) for (to, _), subject in zip(self.got, subjects, strict=True)]


@pytest.fixture
def running():
    servers = []

    def begin(server):
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        servers.append((server, thread))
        return server

    yield begin
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def hook(running):
    return running(Hook())


@pytest.fixture
def post(running):
    return running(Post())


@pytest.fixture
def bench(tmp_path, opened):
    return opened(Bench(tmp_path))


class Notified:
    """A notifier over a bench, whose looks the test makes; ``now_s`` is its clock."""

    def __init__(self, bench, **notify):
        self.bench, self.ahead_s, self.active = bench, 0.0, True
        self.spec = NotifySpec.model_validate(notify)
        self.restart()

    def restart(self):
        self.notifier = Notifier(
            self.spec, self.bench.live.store, lambda: self.bench.clock() + self.ahead_s, lambda: self.active,
            public_url="https://gpus.example.org",
        )  # fmt: skip

    def look(self, later_s=0.0):
        self.ahead_s += later_s
        self.notifier.look()


def ended(bench, **more):
    """Submit a job and run it to its end; returns its number."""
    job = bench.submit(5.0, epochs=1, **more)
    for _ in range(20):
        bench.settle()
        if bench.row(job).ended_s is not None:
            return job
        bench.advance(5.0)
    raise AssertionError


def test_a_webhook_is_told_what_it_asked_for_and_nothing_from_before(bench, hook):
    ended(bench)
    notified = Notified(bench, webhooks=[{"url": hook.url, "kinds": ["started", "completed"]}])
    notified.look()
    assert hook.got == []
    job = ended(bench)
    notified.look()
    notified.look()
    assert hook.told == [("started", "j"), ("completed", "j")]
    document = hook.got[1][1]
    assert document["job"] == job
    assert (document["tenant"], document["reason"], document["gpus"]) == ("a", document["reason"], 1)
    assert document["time"].startswith("2027-")
    assert document["text"].startswith(f"job {job} j of a: completed")


def test_of_other_tenants_it_is_told_nothing(bench, hook):
    notified = Notified(bench, webhooks=[{"url": hook.url, "tenants": ["b"]}])
    notified.look()
    ended(bench)
    of_b = ended(bench, tenant="b")
    notified.look()
    assert [(d["job"], d["tenant"]) for _, d, _, _ in hook.got] == [(of_b, "b")]


def test_requests_are_signed(bench, hook, monkeypatch):
    spec = {"url": hook.url, "secret_variable": "HOOK_SECRET"}
    with pytest.raises(InputError, match="HOOK_SECRET"):
        Notified(bench, webhooks=[spec])
    monkeypatch.setenv("HOOK_SECRET", "s3cret")
    notified = Notified(bench, webhooks=[spec])
    notified.look()
    ended(bench)
    notified.look()
    ((_, _, body, signature),) = hook.got
    assert signature == "sha256=" + hmac.new(b"s3cret", body, hashlib.sha256).hexdigest()


def test_what_fails_is_tried_again_in_order_and_holds_up_no_other(bench, running):
    bad, good = running(Hook()), running(Hook())
    notified = Notified(bench, webhooks=[{"url": bad.url}, {"url": good.url}])
    notified.look()
    bad.answers = [503, 429]
    first, second = ended(bench), ended(bench)
    notified.look()
    assert [d["job"] for status, d, _, _ in good.got if status == 200] == [first, second]
    assert [(status, d["job"]) for status, d, _, _ in bad.got] == [(503, first)]
    notified.look()  # not at once
    assert len(bad.got) == 1
    notified.look(later_s=60.0)
    notified.look(later_s=60.0)
    assert [(status, d["job"]) for status, d, _, _ in bad.got] == [
        (503, first), (429, first), (200, first), (200, second),
    ]  # fmt: skip


@pytest.mark.slow
def test_what_is_refused_for_good_or_never_taken_is_left_out(bench, hook):
    notified = Notified(bench, webhooks=[{"url": hook.url}])
    notified.look()
    hook.answers = [404]
    ended(bench)
    second = ended(bench)
    notified.look()
    assert [(status, d["job"]) for status, d, _, _ in hook.got][1:] == [(200, second)]
    hook.answers = [500] * 3
    third, fourth = ended(bench), ended(bench)
    notified.look()
    notified.look(later_s=90_000.0)  # a day has passed
    assert [(status, d["job"]) for status, d, _, _ in hook.got][2:] == [(500, third), (500, third), (500, fourth)]
    notified.look(later_s=400.0)
    assert len(hook.got) == 5


def test_another_controller_goes_on_where_the_first_ended(bench, hook):
    notified = Notified(bench, webhooks=[{"url": hook.url}])
    notified.look()
    first = ended(bench)
    notified.look()
    second = ended(bench)
    notified.active = False
    notified.look()  # which a standby never calls: it does not send even then
    notified.active = True
    notified.restart()
    notified.look()
    assert [d["job"] for _, d, _, _ in hook.got] == [first, second]
    assert set(bench.live.store.setting(SETTING)) == {notified.notifier._progress[0].destination.key}


@pytest.mark.slow
def test_what_nobody_wants_is_not_looked_at_again_by_the_next_controller(bench, hook, monkeypatch):
    monkeypatch.setattr("commonwatt.controlplane.notifications._PAGE", 4)
    notified = Notified(bench, webhooks=[{"url": hook.url, "kinds": ["failed"]}])
    notified.look()
    for _ in range(4):
        ended(bench)
        notified.look()
    (written,) = bench.live.store.setting(SETTING).values()
    newest = bench.live.store.events(limit=1, newest_first=True)[0].id
    assert hook.got == []
    assert 0 <= newest - written < 4


@pytest.mark.slow
def test_mail_goes_to_owners_who_asked_and_may_be_written_to(bench, post):
    host, port = post.server_address
    notified = Notified(bench, mail={**MAIL, "host": host, "port": port})
    notified.look()
    ended(bench)
    ended(bench, mail_to="eve@elsewhere.test")
    both = ended(bench, mail_to="ada@example.org", mail_on=("begin", "end"))
    ended(bench, mail_to="ada@Example.org", mail_on=("fail",))
    notified.look()
    assert post.told == [("ada@example.org", f"job {both} j: started"), ("ada@example.org", f"job {both} j: completed")]
    assert f"commonwatt explain {both}" in post.got[0][1]
    assert "https://gpus.example.org" in post.got[0][1]


def test_an_address_that_nobody_has_stops_no_other_mail(bench, post):
    host, port = post.server_address
    notified = Notified(bench, mail={**MAIL, "host": host, "port": port})
    notified.look()
    post.unknown = {"gone@example.org"}
    ended(bench, mail_to="gone@example.org")
    known = ended(bench, mail_to="ada@example.org")
    notified.look()
    assert post.told == [("ada@example.org", f"job {known} j: completed")]


def test_a_mail_server_that_is_away_is_waited_for(bench, post):
    host, port = post.server_address
    notified = Notified(bench, mail={**MAIL, "host": host, "port": 9 if port != 9 else 10})
    notified.look()
    job = ended(bench, mail_to="ada@example.org")
    notified.look()
    notified.spec = NotifySpec.model_validate({"mail": {**MAIL, "host": host, "port": port}})
    notified.restart()
    notified.look()
    assert post.told == [("ada@example.org", f"job {job} j: completed")]


def test_owners_are_told_when_no_mail_will_come():
    spec = NotifySpec.model_validate({"mail": MAIL}).mail
    assert mail_warning(spec, "ada@example.org") is None
    assert mail_warning(spec, "ada@elsewhere.test") == "mail_to: mail is sent to example.org only"
    assert "no mail is sent here" in mail_warning(None, "ada@example.org")


@pytest.mark.parametrize(
    "address",
    ["ada", "a@b", "a@b.c\nBcc: x@y.z", "Ada <a@b.org>", "a@b.org, c@d.org", "a b@c.org", "é@b.org", "@b.org"],
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match="mail_to"):
        JobFile(name="x", command=("true",), mail_to=address)


@pytest.mark.long
def test_a_server_notifies_by_itself(tmp_path, hook):
    live = open_live(config_in(tmp_path, engine="simulated", live={"notify": {"webhooks": [{"url": hook.url}]}}))
    live.start()
    try:
        until(lambda: live.store.setting(SETTING) is not None)
        live.store.add_tenant("a", 1.0, 0.0)
        file = JobFile.model_validate({"name": "j", "command": ["true"], "times_s": {"V100": [0.1]}})
        live.store.submit("a", file, live.supervisor._clock())
        live.supervisor.wake()
        until(lambda: hook.told == [("completed", "j")])
    finally:
        live.close()


@pytest.mark.parametrize(
    ("notify", "field"),
    [
        ({"webhooks": [{"url": "hooks.example.org"}]}, "live.notify.webhooks.0.url"),
        ({"webhooks": [{"url": "http://x.test", "kinds": ["late"]}]}, "live.notify.webhooks.0.kinds.0"),
        ({"mail": {"sender": "gpus@example.org"}}, "live.notify.mail.domains"),
        ({"mail": {"sender": "gpus", "domains": ["a.org"]}}, "live.notify.mail.sender"),
    ],
)
def test_what_is_wrong_in_the_configuration_is_named(tmp_path, notify, field):
    path = config_in(tmp_path, engine="simulated", live={"notify": notify})
    done = run("check", path)
    assert done.code == 2
    assert field in done.err
