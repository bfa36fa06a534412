"""The dashboard in a real Chromium. The fixture ``visit`` also checks console and requests."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

pytest.importorskip("playwright")

from commonwatt.control.capacity import PoolNow, PowerNow
from commonwatt.control.usage import TenantShare
from commonwatt.model.capacity import CapacitySpec
from commonwatt.store import tables
from commonwatt.store.records import RequestKind
from tests.dashboard.made import MadeService, requests_of
from tests.report.pages import HOSTILE

ROW = "#queue-rows [role=row]:not([hidden])"


def no_sideways_scroll(page):
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def numbers(page, selector):
    return [int(n.replace(",", "")) for n in re.findall(r"[\d,]+", page.inner_text(selector))]


@pytest.mark.long
@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (360, "dark")])
def test_everything_is_shown(served, service, visit, width, scheme):
    page = visit(served.url, service.tokens["operator"], width=width, color_scheme=scheme, charts=True).page
    snapshot = service.snapshot()
    assert page.locator(".tile-node").count() == len(snapshot.nodes)
    assert page.locator(".tile-node.down").count() == 1
    assert page.locator(".tile-node.drained").count() == 1
    assert numbers(page, "#tiles .tile:nth-child(1) b") == [snapshot.busy_gpus, snapshot.total_gpus]
    assert numbers(page, "#tiles .tile:nth-child(2)") == [12, 30]
    assert page.inner_text("#queue-note").startswith("42 jobs")
    assert page.get_attribute("#queue-rows", "aria-rowcount") == "42"
    assert page.get_attribute("#plan-rows", "aria-rowcount") == "39"  # three waiting jobs have no expected start
    assert page.locator("#plan-rows .bar.running").count() == 12
    page.wait_for_selector("#tenant-table tbody tr:nth-child(4) .entitled")
    saving = page.inner_text("#saving").replace("\u00a0", " ")
    assert saving == (
        "Estimate against fifo, simulated on 400 jobs of the last 7 days: 12.5 kWh (13%) less energy, "
        "2.15 EUR (13%) less cost, 0.5 EUR more tardiness cost. With this policy nodes follow the capacity plan "
        "last-value, "
        "with the baseline all nodes stay on. No forecast is included: ours: 0 steps."
    )
    meter = next(row for row in service.store.ledger() if row["row"] == "meter")
    energy = f"{meter['energy_uj'] / 3.6e12:.3g}\u00a0kWh"  # the meter's row is the total of the others
    page.wait_for_selector(f"#tiles .tile:nth-child(4) b:text-is('{energy}')")
    page.wait_for_selector("#cost-table tbody tr:last-child th:text-is('all nodes')")
    page.wait_for_selector("#event-list li:nth-child(20)")
    for figure in ("#power-figure", "#gpu-figure"):
        page.wait_for_selector(f"{figure} .scatterlayer path.js-line[d]")
    assert page.inner_text("#mode") == "live"
    assert no_sideways_scroll(page)


@pytest.mark.long
def test_a_wrong_token(served, service, visit):
    seen = visit(served.url, None)
    seen.expected = ("401",)
    page = seen.page
    page.wait_for_selector("#login[open]")
    page.fill("#token", "cw_" + "x" * 43)
    page.keyboard.press("Enter")
    page.wait_for_selector("#login-error:has-text('invalid or revoked')")
    page.keyboard.press("Escape")  # there is nothing behind it
    page.fill("#token", service.tokens["ada"])
    page.keyboard.press("Enter")
    page.wait_for_selector("html[data-ready=true]")
    page.reload()  # the tab remembers
    page.wait_for_selector("html[data-ready=true]")
    page.click("#out")
    page.wait_for_selector("html:not([data-ready]) #login[open]")
    assert page.evaluate("Object.keys(sessionStorage)") == []
    assert page.evaluate("Object.keys(localStorage)") == []
    assert page.locator(".tile-node").count() == 0
    assert page.locator(f"{ROW}, #event-list b, #tiles b").count() == 0


@pytest.mark.long
def test_what_cannot_be_sent_is_no_token(served, service, visit):
    """Pasted with quotes of a text processor, it would be an error of the browser, which looks like a lost server."""
    page = visit(served.url, None).page
    page.evaluate("sessionStorage.setItem('commonwatt-token', '\u201eold\u201c')")  # by a page of an earlier version
    page.reload()
    for pasted in (f"\u201e{service.tokens['ada']}\u201c", f"{service.tokens['ada']} twice"):
        page.wait_for_selector("#login[open]")
        page.fill("#token", pasted)
        page.keyboard.press("Enter")
        page.wait_for_selector("#login-error:has-text('not a token')")
        assert page.input_value("#token") == ""
    assert page.is_hidden("#lost")
    page.fill("#token", service.tokens["ada"])
    page.keyboard.press("Enter")
    page.wait_for_selector("html[data-ready=true]")
    assert page.inner_text("#login-error") == ""


@pytest.mark.long
def test_a_revoked_token(served, service, visit, monkeypatch):
    monkeypatch.setattr("commonwatt.service.broadcaster.RECHECK_S", 0.1)
    monkeypatch.setattr("commonwatt.service.auth._CACHED_S", 0.1)
    seen = visit(served.url, service.tokens["bob"])
    seen.expected = ("401",)
    service.store.revoke(service.store.owner(service.tokens["bob"]).token, 2.0)
    seen.page.wait_for_selector("#login-error:has-text('invalid or revoked')")
    assert seen.page.locator(".tile-node").count() == 0


@pytest.mark.long
def test_operators_see_the_capacity_plan(serve, served, service, visit):
    page = visit(served.url, service.tokens["operator"]).page
    page.wait_for_selector("#tenant-table tbody tr:nth-child(4)")
    assert page.locator("#capacity").is_hidden()  # there is none
    planned = service.config.model_copy(update={"capacity": CapacitySpec(policy="cuff")})
    service.context = replace(service.context, config=planned)
    served = serve(service)
    pools = (
        PoolNow("V100", 40, 16, 12, 16, kept=True, sentence=""),
        PoolNow("T4", 32, 0, 4, 8, kept=False, sentence="too few jobs so far"),
    )
    service.tick(pools=pools, power=PowerNow(12_000.0, 9_500.0, 2))
    page = visit(served.url, service.tokens["operator"], charts=True).page
    page.wait_for_selector("#capacity-table tbody tr:nth-child(2)")
    rows = [row.split("\t") for row in page.inner_text("#capacity-table tbody").splitlines()]
    assert rows == [["V100", "40", "16", "12", "16", "kept"], ["T4", "32", "0", "4", "8", "too few jobs so far"]]
    note = page.inner_text("#capacity-note").replace("\u00a0", " ")
    assert note.startswith("Plan cuff, promise 0.98.")
    assert note.endswith("Power budget: 12 kW; nodes count for 9.5 kW. It keeps 2 nodes off, and 0 jobs waiting.")
    page.wait_for_selector("#capacity-figure .scatterlayer path.js-line[d]", state="attached")  # it may be flat
    assert no_sideways_scroll(page)
    page = visit(served.url, service.tokens["ada"]).page
    page.wait_for_selector("#tenant-table tbody tr")
    assert page.locator("#capacity").is_hidden()


def shares_of(weights):
    """A moment at which the first of so many tenants has used everything."""
    total, used = sum(weights.values()), 7200.0
    return tuple(
        TenantShare(
            name,
            4.0 - k,
            1.5 + k,
            used * (k == 0),
            float(k == 0),
            weight / total,
            weight / total * used - used * (k == 0),
        )
        for k, (name, weight) in enumerate(weights.items())
    )


@pytest.mark.long
def test_shares_are_shown_where_something_is_guaranteed(serve, served, service, visit):
    page = visit(served.url, service.tokens["operator"]).page
    page.wait_for_selector("#tenant-table tbody tr:nth-child(4)")
    assert page.locator("#shares").is_hidden()  # weights order jobs here, and guarantee nothing
    service.tick(shares=shares_of(service.store.tenants()))
    served = serve(service)
    page = visit(served.url, service.tokens["operator"], charts=True).page
    page.wait_for_selector("#share-table tbody tr:nth-child(4)")
    cells = [text.replace("\u00a0", " ") for text in page.locator("#share-table tbody tr > *").all_text_contents()]
    assert [cells[k : k + 7] for k in range(0, len(cells), 7)] == [
        ["ada", "4", "1.5", "100%", "10%", "2 GPU h", "-1.8 GPU h"],
        ["bob", "3", "2.5", "0.0%", "20%", "0 GPU h", "0.4 GPU h"],
        ["carol", "2", "3.5", "0.0%", "30%", "0 GPU h", "0.6 GPU h"],
        ["dan", "1", "4.5", "0.0%", "40%", "0 GPU h", "0.8 GPU h"],
    ]
    for figure, lines in (("#share-figure", 8), ("#debt-figure", 4)):
        page.wait_for_selector(f"{figure} .scatterlayer .trace:nth-child({lines})", state="attached")
        assert page.locator(f"{figure} .scatterlayer .trace").count() == lines
    assert no_sideways_scroll(page)
    page.wait_for_selector("#debt-figure .scatterlayer path.js-line[d]", state="attached")  # a second look: a line
    service.tick(shares=())  # nobody asks for anything any more
    page.wait_for_selector("#shares", state="hidden")


@pytest.mark.long
def test_a_tenant_sees_its_own_share_alone(served, service, visit):
    service.tick(shares=shares_of(service.store.tenants()))
    page = visit(served.url, service.tokens["bob"], charts=True).page
    page.wait_for_selector("#share-table tbody tr")
    assert page.locator("#share-table tbody th").all_inner_texts() == ["bob"]
    page.wait_for_selector("#debt-figure .scatterlayer .trace", state="attached")
    names = page.evaluate(
        "['share-figure', 'debt-figure'].flatMap(id => document.getElementById(id).data.map(t => t.name))"
    )
    assert names == ["bob, used", "bob, entitled", "bob"]
    own = page.inner_text("#shares")
    assert not [other for other in ("ada", "carol", "dan") if other in own]


@pytest.mark.long
def test_a_tenant_sees_its_own(served, service, visit):
    page = visit(served.url, service.tokens["ada"]).page
    own = [row.id for row in service.store.jobs(limit=100) if row.tenant == "ada"]
    assert page.inner_text("#queue-note").startswith(f"{len(own)} jobs")
    tenants = set(page.locator(f"{ROW} .tenant").all_inner_texts())
    assert tenants == {"ada"}
    page.wait_for_selector("#tenant-table tbody tr")
    assert page.locator("#tenant-table tbody th").all_inner_texts() == ["ada"]
    page.wait_for_selector("#cost-table tbody tr:nth-child(2):last-child th:text-is('all')")
    assert not page.is_visible("#switch")
    node = next(node for node in service.snapshot().nodes if set(node.jobs) - set(own))
    page.click(f"[data-node={node.name}]")
    page.wait_for_selector("#details[open]")
    shown = [int(text.split()[0]) for text in page.locator("#details .link").all_inner_texts()]
    assert shown == [job for job in node.jobs if job in own]
    assert page.locator("#details .buttons button").count() == 0  # tenants drain nothing


@pytest.mark.long
def test_by_keyboard_alone(served, service, visit):
    page = visit(served.url, service.tokens["operator"]).page
    reached = []
    while "queue-rows" not in reached:
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
    order = ["skip", "switch", "new", "out", "tiles-map", "plan-span", "plan-rows", "queue-status", "queue-find"]
    assert [name for name in dict.fromkeys(reached) if name in order] == order
    assert page.evaluate("document.activeElement.id") == "queue-rows"
    first = page.locator("#queue-rows .active .name").inner_text()
    page.keyboard.press("ArrowDown")
    second = page.locator("#queue-rows .active .name").inner_text()
    assert first != second
    active = page.get_attribute("#queue-rows", "aria-activedescendant")
    assert page.locator(f"#{active} .name").inner_text() == second
    page.keyboard.press("Enter")
    page.wait_for_selector("#details[open]")
    job = int(second.split()[0])
    assert page.inner_text("#details-title").startswith(f"Job {job}:")
    page.wait_for_selector("#details dt:has-text('Command')")
    page.keyboard.press("Escape")
    page.wait_for_selector("#details:not([open])", state="attached")
    assert page.evaluate("document.activeElement.id") == "queue-rows"  # back where one was
    page.keyboard.press("End")
    assert page.locator("#queue-rows .active").get_attribute("aria-rowindex") == "42"
    page.keyboard.press("Home")
    assert page.locator("#queue-rows .active").get_attribute("aria-rowindex") == "1"

    page.focus(".tiles-map >> nth=0")
    names = [node.name for node in service.snapshot().nodes if node.gpu_type == "V100"]
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#tip b") == names[1]
    assert "down" in page.inner_text("#tip")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.wait_for_selector("#details[open]")
    assert page.inner_text("#details-title") == f"Node {names[-1]}"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"  # the focus is seen


NAMELESS = """() => [...document.querySelectorAll("button, input, select, [tabindex='0'], dialog, [role=img]")]
  .filter((e) => !(e.labels?.length || e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") ||
                   (e.tagName === "BUTTON" && e.textContent.trim())))
  .map((e) => e.outerHTML.slice(0, 80))"""
IDS = "() => [...document.querySelectorAll('[id]')].map((e) => e.id)"


@pytest.mark.long
def test_everything_has_a_name_for_those_who_do_not_see_it(served, service, visit):
    page = visit(served.url, service.tokens["operator"]).page
    service.tick(nodes=service.snapshot().nodes[3:])  # nodes go ...
    page.wait_for_selector("#tiles .tile:nth-child(6) b:text-is('17')")
    service.tick(nodes=(*service.snapshot().nodes, replace(service.snapshot().nodes[0], name="new")))  # ... and come
    page.wait_for_selector("[data-node=new]")
    page.click(f"{ROW} >> nth=0")
    page.click("#details button:text-is('Hold')")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.click("#new")
    assert page.evaluate(NAMELESS) == []
    ids = page.evaluate(IDS)
    assert len(set(ids)) == len(ids)
    named = page.evaluate(
        "[...document.querySelectorAll('[aria-labelledby]')].map((e) => e.getAttribute('aria-labelledby'))"
    )
    assert set(named) <= set(ids)


@pytest.mark.long
def test_nothing_is_done_without_a_yes(served, service, visit):
    page = visit(served.url, service.tokens["operator"]).page
    before = requests_of(service)
    page.click(f"{ROW} >> nth=0")
    for button in ("Hold", "Cancel the job"):
        page.click(f"#details button:text-is('{button}')")
        page.wait_for_selector("#confirm[open]")
        assert page.evaluate("document.activeElement.textContent") == "No, leave it"
        page.keyboard.press("Enter")
        page.wait_for_selector("#confirm:not([open])", state="attached")
        page.click(f"#details button:text-is('{button}')")
        page.keyboard.press("Escape")
        page.wait_for_selector("#confirm:not([open])", state="attached")
    page.click("#details .close")
    assert not page.is_visible("#switch-power")  # Slurm alone has a scheduler of its own
    page.click("#switch")
    page.keyboard.press("Escape")
    page.wait_for_selector("#confirm:not([open])", state="attached")
    assert requests_of(service) == before


def test_hold_release_cancel(served, service, visit):
    page = visit(served.url, service.tokens["operator"]).page
    page.select_option("#queue-status", "waiting")
    name = page.locator(f"{ROW} .name >> nth=0").inner_text()
    job = int(name.split()[0])
    page.fill("#queue-find", name)
    row = f"{ROW} >> nth=0"
    page.click(row)
    page.click("#details button:text-is('Hold')")
    page.click("#confirm button[value=yes]")
    page.wait_for_selector(f"{ROW} .is-held")
    page.click(row)
    page.click("#details button:text-is('Release')")
    page.click("#confirm button[value=yes]")
    page.wait_for_selector(f"{ROW} .is-waiting")
    page.click(row)
    page.click("#details button:text-is('Cancel the job')")
    page.click("#confirm button[value=yes]")
    page.wait_for_selector("#says:has-text('Cancellation of')")
    page.wait_for_selector("#queue-note:has-text('0 jobs')")
    assert service.store.job(job).status == "cancelled"
    page.select_option("#queue-status", "ended")
    page.wait_for_selector(f"{ROW} .is-cancelled")
    page.wait_for_selector(f"#event-list li:has-text('cancel job {job} ')")


@pytest.mark.long
def test_who_ended_last_is_shown_first_and_comes_by_itself(served, service, visit, monkeypatch):
    """A long job that ends has a small number, however many have come and gone since."""
    service.end(40)
    page = visit(served.url, service.tokens["operator"]).page
    page.evaluate("window.scrollTo(0, 0)")
    page.select_option("#queue-status", "ended")
    page.wait_for_selector(f"{ROW} .name:has-text('40 train-00040')")
    service.end(3)
    page.wait_for_selector(f"{ROW}[aria-rowindex='1'] .name:has-text('3 train-00003')")
    assert page.get_attribute("#queue-rows", "aria-rowcount") == "2"
    tenant = service.store.job(3).tenant
    page.select_option("#queue-tenant", tenant)
    page.wait_for_function(f"[...document.querySelectorAll('{ROW} .tenant')].every((e) => e.innerText === '{tenant}')")


@pytest.mark.long
def test_drain_and_dry_run(served, service, visit):
    page = visit(served.url, service.tokens["operator"]).page
    name = service.snapshot().nodes[-1].name
    tile = f"[data-node={name}]"
    page.click(tile)
    page.click("#details button:text-is('Drain')")
    page.click("#confirm button[value=yes]")
    page.wait_for_selector(f"{tile}.drained")
    page.click(tile)
    page.click("#details button:text-is('Undrain')")
    page.click("#confirm button[value=yes]")
    page.wait_for_selector(f"{tile}:not(.drained)")
    page.click("#switch")
    page.click("#confirm button[value=yes]")
    page.wait_for_selector("#mode:has-text('dry run')")
    page.click("#switch:has-text('Go live')")
    page.click("#confirm button[value=yes]")
    page.wait_for_selector("#mode:text-is('live')")
    assert service.snapshot().mode == "live"


def test_submit(served, service, visit):
    seen = visit(served.url, service.tokens["operator"], timezone_id="Europe/Berlin")
    seen.expected = ("422",)
    page = seen.page
    page.wait_for_selector("#tenant-table tbody tr")
    page.click("#new")
    page.select_option("#submit [name=tenant]", "carol")
    page.fill("#submit [name=name]", "from-the-page")
    page.fill("#submit [name=command]", "python 'my train.py' --lr 0.1 \"")
    page.fill("#submit [name=epochs]", "7")
    page.fill("#submit [name=due]", "2030-01-02T03:04")
    page.select_option("#submit [name=gpu_type]", "V100")
    page.click("#submit summary")
    page.fill("#submit [name=gpu_counts]", "1, 2")
    page.click("#submit button:text-is('Submit')")
    page.wait_for_selector("#submit .error:has-text('command')")  # a quote too many
    page.fill("#submit [name=command]", "python 'my train.py' --lr 0.1")
    page.keyboard.press("Enter")
    page.wait_for_selector("#submit:not([open])", state="attached")
    page.wait_for_selector("#says:has-text('(from-the-page) is accepted')")
    page.fill("#queue-find", "from-the-page")
    page.wait_for_selector(f"{ROW} .name:has-text('from-the-page')")
    (row,) = [row for row in service.store.jobs(limit=1000) if row.name == "from-the-page"]
    assert row.tenant == "carol"
    assert row.file.command == ("python", "my train.py", "--lr", "0.1")
    assert (row.file.epochs, row.file.gpu_type, row.file.gpu_counts) == (7, "V100", (1, 2))
    assert row.due_s == 1893549840  # 2030-01-02T02:04Z


@pytest.mark.long
def test_connection_lost_and_found(serve, service, visit):
    server = serve(service)
    seen = visit(server.url, service.tokens["operator"])
    seen.expected = ("ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_INCOMPLETE_CHUNKED", "ERR_CONNECTION_RESET")
    page = seen.page
    server.stop()
    page.wait_for_selector("#lost:has-text('Connection lost')")
    service.tick(mode="dry-run")
    serve(service, server.port)
    page.wait_for_selector("#mode:has-text('dry run')")
    page.wait_for_selector("#lost", state="hidden")


@pytest.mark.long
def test_changes_come_by_themselves(served, service, visit):
    page = visit(served.url, service.tokens["operator"]).page
    snapshot = service.snapshot()
    service.tick(healthy=False, trouble="the database is away")
    page.wait_for_selector("#trouble:has-text('the database is away')")
    service.tick(
        healthy=True, trouble=None, busy_gpus=0, jobs={},
        nodes=tuple(replace(n, allocated_gpus=0, jobs=()) for n in snapshot.nodes),
    )  # fmt: skip
    page.wait_for_selector("#trouble", state="hidden")
    page.wait_for_selector("#queue-rows .none")
    page.wait_for_selector("#plan-rows .none")
    assert numbers(page, "#tiles .tile:nth-child(1) b") == [0, snapshot.total_gpus]


@pytest.mark.long
def test_text_of_users_is_shown_as_it_is(serve, service, visit):
    """Whatever got into the store: names are restricted at the door, but this page does not rely on it."""
    with service.database.transaction() as c:
        c.execute(tables.jobs.update().where(tables.jobs.c.id == 1).values(name=HOSTILE))
        c.execute(tables.events.update().where(tables.events.c.job == 1).values(sentence=HOSTILE, reason=HOSTILE))
    jobs = {k: replace(job, reason=HOSTILE, sentence=HOSTILE) for k, job in service.snapshot().jobs.items() if k < 3}
    jobs[1] = replace(jobs[1], name=HOSTILE)
    nodes = tuple(replace(node, name=f"{node.name}{HOSTILE}", gpu_type=HOSTILE) for node in service.snapshot().nodes)
    service.tick(trouble=HOSTILE, engine=HOSTILE, jobs=jobs, nodes=nodes)
    service.store.add_tenant(HOSTILE, 1.0, 1.0)
    service.write_log(1, HOSTILE)
    server = serve(service)
    page = visit(server.url, service.tokens["operator"]).page
    shown = page.locator(f"{ROW} .name").all_inner_texts()
    assert f"1 {HOSTILE}" in shown
    page.wait_for_selector("#tenant-table tbody tr:nth-child(5)")
    page.hover(".tile-node >> nth=0")
    assert HOSTILE in page.inner_text("#tip b")
    page.click(".tile-node >> nth=6")
    page.click("#details .close")
    page.locator(ROW).nth(shown.index(f"1 {HOSTILE}")).click()
    page.click("#details button:text-is('Show output')")
    page.wait_for_selector("#details .log:not([hidden])")
    assert page.inner_text("#details .log") == HOSTILE
    page.click("#details button:text-is('Cancel the job')")
    assert HOSTILE in page.inner_text("#confirm p")
    page.keyboard.press("Escape")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, #details b b, main script").count() == 0


@pytest.mark.long
@pytest.mark.parametrize("width", [1440, 360])
def test_a_thousand_nodes_and_ten_thousand_jobs(tmp_path, serve, visit, monkeypatch, width):
    """The page holds few rows however many there are, and answers to keys while everything changes."""
    service = MadeService(tmp_path, nodes=1000, running=900, waiting=9100)
    server = serve(service)
    page = visit(server.url, service.tokens["operator"], width=width, charts=True).page
    assert page.locator(".tile-node").count() == 1000
    assert page.get_attribute("#queue-rows", "aria-rowcount") == "2900"  # those that run, and 2,000 that wait
    assert "7,100 more wait and start later" in page.inner_text("#queue-note")
    assert numbers(page, "#tiles .tile:nth-child(2)") == [900, 9100]
    assert page.locator("#queue-rows [role=row]").count() < 60
    assert page.locator("#plan-rows [role=row]").count() < 60
    jobs = service.snapshot().jobs
    service.tick(jobs={k: replace(job, expected_end_s=(job.expected_end_s or 0) + 60) for k, job in jobs.items()})
    page.focus("#queue-rows")
    page.keyboard.press("End")
    page.wait_for_selector("#queue-rows [aria-rowindex='2900'].active")
    unlisted = next(job for job in jobs.values() if job.status == "waiting" and job.expected_start_s is None)
    for find in (unlisted.name, f"{unlisted.id} {unlisted.name}", str(unlisted.id)):
        page.fill("#queue-find", "nothing is called so")
        page.wait_for_selector("#queue-note:has-text('0 jobs')")
        page.fill("#queue-find", find)
        page.wait_for_selector(f"{ROW} .name:has-text('{unlisted.name}')")
    page.fill("#queue-find", "")
    service.change_job(unlisted.id, held=True)
    service.store.ask(RequestKind.HOLD, 1.0, job=unlisted.id)
    service.wake()
    monkeypatch.setattr("commonwatt.service.broadcaster.WAITING_LISTED", 0)
    service.tick()
    page.select_option("#queue-status", "held")
    page.wait_for_selector(f"{ROW} .name:has-text('{unlisted.name}')")
    page.select_option("#queue-status", "")
    page.select_option("#queue-tenant", unlisted.tenant)  # more of hers than are listed
    page.wait_for_selector("#queue-note:has-text('of those not listed, the first 200')")
    assert no_sideways_scroll(page)
