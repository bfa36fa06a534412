"""One controller at a time."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

from commonwatt.model.errors import ClaimLostError, StoreError
from commonwatt.store import claim as claims
from commonwatt.store.api_store import ApiStore
from commonwatt.store.claim import claim_store, try_claim
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.records import RequestKind
from commonwatt.store.settings import put_setting
from tests.engines.waiting import until
from tests.store.made import everything, intent, spent

HOLD = (
    "import sys; from pathlib import Path; from commonwatt.store.database import Database, address\n"
    "from commonwatt.store.claim import claim_store\n"
    "database = Database(address(sys.argv[1], Path('/'))); claim = claim_store(database)\n"
    "print('held', flush=True); sys.stdin.read()"
)


def claimed(database, *, lease=True):
    """Claim a store that was released a moment ago: a server frees the lock once it has seen the connection end."""
    return until(lambda: try_claim(database, lease=lease))


def test_a_claim_excludes_others_until_it_is_released(database, again):
    with claim_store(database) as claim:
        assert claim.holds_lock()
        for other in (database, again()):
            with pytest.raises(StoreError, match=r"^another controller, process \d+ on .*, already runs on the store "):
                claim_store(other)
        assert claim.holds_lock()
    assert not claim.holds_lock()
    claim.release()
    with claimed(again(), lease=False) as later:
        assert later.holds_lock()


@pytest.mark.slow
def test_a_process_that_is_killed_frees_its_claim(database, place):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match=f"process {holder.pid} on"):
            claim_store(database)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    claim = None
    for _ in range(600):  # a server notices when it next looks at the connection
        try:
            claim = claim_store(database)
            break
        except StoreError:
            signal.sigtimedwait([], 0.1)
    assert claim is not None
    claim.release()


def test_children_that_run_another_program_do_not_keep_the_claim(database, again):
    claim = claim_store(database)
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        claim.release()
        claim_store(again()).release()
    finally:
        child.stdin.close()
        child.wait()


def test_who_lost_its_claim_writes_no_more(database, again):
    """As after a break of the network: the server freed the lock, another controller took it, the first goes on."""
    first = claim_store(database)
    old = ControllerStore(database, first)
    old.write(Tick(ledger={("idle", 0): spent()}))
    first.release()
    other = again()
    with claim_store(other) as second:
        before = everything(other)
        for write in (
            lambda: old.write(Tick(ledger={("idle", 0): spent()})),
            lambda: old.intend([intent()]),
            lambda: old.prune(1e12),
        ):
            with pytest.raises(StoreError, match=r"lost its claim on the store: process \d+ on .* has taken it over"):
                write()
        assert everything(other) == before
        ControllerStore(other, second).write(Tick(ledger={("idle", 0): spent()}))
    assert ApiStore(other).ledger()[0]["energy_uj"] == 2


def test_a_lock_that_was_lost_is_taken_again_if_nobody_else_has(database, again):
    claim = claim_store(database)
    claim._lock.release()
    assert not claim.holds_lock()
    ControllerStore(database, claim).write(Tick(ledger={("idle", 0): spent()}))
    assert claim.holds_lock()
    with pytest.raises(StoreError, match="another controller"):
        claim_store(again())
    claim.release()


def test_who_claims_again_keeps_its_own_connections(database):
    claim_store(database).release()
    with claim_store(database) as claim, database.transaction() as c:
        claim.check(c)


def test_a_transaction_that_the_former_holder_left_open_is_ended(database, again, backend):
    """Where the network was cut in between, it would keep its locks of rows."""
    if backend != "postgresql":
        pytest.skip("other servers end it by themselves")
    claim = claim_store(database)

    def left_open():
        with database.transaction() as c:
            claim.check(c)
            claim.release()
            claimed(again()).release()
            c.exec_driver_sql("SELECT 1")

    with pytest.raises(StoreError, match=r"terminating connection|closed"):
        left_open()


def test_people_need_no_claim(database, again):
    store = ApiStore(again())
    with claim_store(database):
        store.add_tenant("ada", 1.0, 0.0)
        assert store.ask(RequestKind.MODE, 1.0, value="live")


class TestLease:
    """A claim that its server ends where its holder says nothing for a while."""

    @pytest.fixture
    def clock(self, monkeypatch):
        now = [1000.0]
        monkeypatch.setattr(claims, "_now_s", lambda: now[0])
        return now

    def test_a_holder_gives_no_command_later_than_its_last_renewal_allows(self, database, clock):
        claim = try_claim(database, lease=True)
        assert claim is not None
        assert claim.may_act()
        clock[0] += 2.9
        assert claim.may_act()
        assert claim.holds_lock()
        clock[0] += 2.9
        assert claim.may_act()
        clock[0] += 0.2
        if database.backend != "sqlite":  # whose lock ends with its process only
            assert not claim.may_act()
        claim.check_may_act()  # it is renewed
        claim.release()
        clock[0] += 10.0
        if database.backend != "sqlite":
            with pytest.raises(StoreError, match="has not renewed its claim on the store in time"):
                claim.check_may_act()

    def test_who_comes_next_waits_unless_the_holder_is_surely_gone(self, database, again, monkeypatch):
        waits = database.backend != "sqlite"
        first = try_claim(database, lease=True)
        assert try_claim(again(), lease=True) is None
        first.release()  # its process lives on
        second = claimed(again())
        assert (second.settle_s > 0) is waits
        second.hand_over()
        third = claimed(database)
        assert third.settle_s == 0
        third.release()
        for process, may_act in (([*claims._process(1)[:2], "0"], False), (None, True), (["other", "x", "1"], True)):
            with database.transaction() as c:
                put_setting(c, "claim", {"token": "x", "pid": 1, "host": "h", "process": process})
            later = claimed(database)
            assert (later.settle_s > 0) is (waits and may_act)
            later.release()

    def test_a_claim_without_a_lease_waits_as_well_where_the_holder_had_one(self, database, again):
        waits = database.backend != "sqlite"
        try_claim(database, lease=True).release()
        second = claimed(again(), lease=False)
        assert (second.settle_s > 0) is waits
        second.release()
        third = claimed(database, lease=False)  # a holder without a lease knows no time to wait for
        assert third.settle_s == 0
        third.release()

    def test_who_was_replaced_hands_nothing_over(self, database, again):
        first = try_claim(database, lease=True)
        first.release()
        second = claimed(again())
        first.hand_over()
        assert "released" not in ApiStore(database).setting("claim")
        second.release()


class Held:
    """A claim on the store."""

    def check_may_act(self) -> None:
        """It is held."""


def test_a_store_that_had_a_claim_needs_one():
    store = ControllerStore(None)
    store.check_may_act()  # a tool that has none by design
    store.term()()
    store.claim = Held()
    store.check_may_act()
    store.claim = None
    with pytest.raises(ClaimLostError):
        store.check_may_act()
    with pytest.raises(ClaimLostError):
        store.term()()
