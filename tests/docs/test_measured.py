"""No number of what was reproduced is typed: a program writes the pages from the recorded results."""

from __future__ import annotations

import json
import re
import sys

import pytest

from commonwatt.model.results import ReproduceRow
from commonwatt.reproduce.collection import recorded
from commonwatt.reproduce.registry import left_out
from commonwatt.reproduce.verdicts import Rule, judged, legend
from tests.docs.pages import ROOT

sys.path.insert(0, str(ROOT / "docs" / "hooks"))
import benchmark_pages
import measured_pages

DATA = ROOT / "docs" / "data"
NUMBER = re.compile(r"\d+(?:\.\d+)?%|\b\d+\.\d+\b")
CODE = re.compile(r"```.*?```|`[^`]*`", re.S)
KEY = re.compile(r"\{(?:command|load|value|less|pivot|rows): ([\w-]+)")
FORMS = sorted((DATA / "pages").glob("*.md"))
SECTION = re.compile(r"(?<=[ (|])\d(?:\.\d)+\b")


@pytest.mark.parametrize("page", list(measured_pages.pages()), ids=lambda page: page.stem)
def test_pages_are_what_the_results_say(page):
    assert page.read_text(encoding="utf-8") == measured_pages.pages()[page]


@pytest.mark.slow
def test_another_result_gives_another_page(monkeypatch):
    changed = json.loads(json.dumps({name: list(pair) for name, pair in measured_pages.results().items()}))
    claims = changed["gsharp-figure-7"][0]["claims"]
    next(claim for claim in claims if claim["quantity"].endswith("below SJF-RR's"))["ours"] = 123.456
    monkeypatch.setattr(measured_pages, "results", lambda: changed)
    pages = measured_pages.pages()
    differ = {page.stem for page, text in pages.items() if page.read_text(encoding="utf-8") != text}
    assert differ == {"claims", "measured", "not-reproduced"}


def test_the_claims_page_shows_notes_and_what_the_rules_are(monkeypatch):
    changed = json.loads(json.dumps({name: list(pair) for name, pair in measured_pages.results().items()}))
    claim = changed["etf-figure-3"][0]["claims"][0]
    claim["note"] = "a remark | of the run"
    monkeypatch.setattr(measured_pages, "results", lambda: changed)
    page = measured_pages.claims_page()
    assert "holds [1] (a remark \\| of the run; worked by hand" in page
    assert f"- [1] {Rule().words}." in page
    assert page.count("\n- [1] ") > 10  # numbers below the table, in each topic anew
    for note in changed["market"][0]["notes"]:
        assert " ".join(measured_pages.escaped(note).split()) in " ".join(page.split())
    for sentence in legend():
        assert sentence in " ".join(page.split())
    for paper, without in left_out().items():
        assert all(f"- {measured_pages.escaped(each)}." in page for each in without), paper
    assert "read as up to it" in page  # how a claim is read stands in its row


def test_claims_that_say_little_are_counted_at_the_top():
    every = [claim for topic, _ in measured_pages.results().values() for claim in topic["claims"]]
    holds = [claim for claim in every if claim["verdict"] == "holds"]
    by_hand = [claim for claim in holds if "tests our implementation" in claim["rule"]]
    assert len(by_hand) > 15
    by_fit = [claim for claim in holds if "was found by these numbers" in claim["rule"]]
    assert f"| holds | {len(holds)} | {len(by_hand)} | {len(by_fit)} |" in measured_pages.claims_page()
    assert re.search(r"^\| holds with changes \| \d+ \| \d+ \| 17 \|$", measured_pages.claims_page(), flags=re.M)


def test_claims_of_scenario_2_are_those_that_its_text_has():
    topic, _ = measured_pages.results()["andreas-scenario-2"]
    assert [claim["paper"] for claim in topic["claims"]] == [30.0, True, 0.01]


def test_no_claim_has_a_value_of_the_paper_that_it_does_not_give():
    ours = re.compile(r"all layers of our tables|the batches:|ResNet18 as A2|Earth$|our G#")
    for topic, _ in measured_pages.results().values():
        assert not [claim["quantity"] for claim in topic["claims"] if ours.search(claim["quantity"])]


def test_a_run_of_some_topics_replaces_these_in_the_record(tmp_path, monkeypatch):
    monkeypatch.setattr(measured_pages, "DATA", tmp_path)

    def run_of(*names, wall_s):
        topic = {"title": "t", "paper": "p", "state": "done", "reason": None, "stand_in": None, "seeds": [0],
                 "notes": [], "claims": [], "others": [], "wall_s": wall_s}  # fmt: skip
        result = {"version": "0", "command": " ".join(names), "extent": "full", "seed": 0, "seeds": [0],
                  "topics": [{**topic, "name": name} for name in names]}  # fmt: skip
        (tmp_path / "result.json").write_text(json.dumps(result))
        measured_pages.record(tmp_path)
        measured_pages.record_times(tmp_path)
        kept = json.loads((tmp_path / "reproduce-full.json").read_text())
        times = json.loads((tmp_path / "times.json").read_text())["full"]
        assert times["topics"] == {topic["name"]: topic["wall_s"] for topic in kept["topics"]}
        return kept["command"], {topic["name"]: topic["wall_s"] for topic in kept["topics"]}

    assert run_of("a", "b", wall_s=1.0) == ("a b", {"a": 1.0, "b": 1.0})
    assert run_of("b", "c", wall_s=2.0) == ("a b", {"a": 1.0, "b": 2.0, "c": 2.0})
    assert run_of("a", "b", "c", wall_s=3.0) == ("a b c", {"a": 3.0, "b": 3.0, "c": 3.0})


def test_a_record_keeps_the_units_of_values_that_the_paper_does_not_print(tmp_path, monkeypatch):
    monkeypatch.setattr(measured_pages, "DATA", tmp_path)
    value = {"quantity": "energy", "paper": None, "ours": 2.5, "unit": "kWh", "least": 2.0, "most": 3.0, "sd": None,
             "held_pct": None, "verdict": "not comparable", "rule": "not compared", "why": "", "note": ""}  # fmt: skip
    topic = {"name": "etf-figure-3", "title": "t", "paper": "p", "state": "done", "reason": None, "stand_in": None,
             "seeds": [0], "notes": [], "claims": [], "others": [value], "wall_s": 1.0}  # fmt: skip
    result = {"version": "0", "command": "c", "extent": "full", "seed": 0, "seeds": [0], "topics": [topic]}
    (tmp_path / "result.json").write_text(json.dumps(result))
    measured_pages.record(tmp_path)
    path = tmp_path / "reproduce-full.json"
    kept = json.loads(path.read_text())
    assert kept["topics"][0]["others"] == {"energy": 2.5}
    (read,) = recorded(path).topics[0].others
    assert (read.quantity, read.ours, read.unit) == ("energy", 2.5, "kWh")
    assert (read.least, read.most, read.held_pct) == (None, None, None)  # a record has no spread of it
    del kept["topics"][0]["other_units"]  # as records were before
    path.write_text(json.dumps(kept))
    (read,) = recorded(path).topics[0].others
    assert (read.ours, read.unit) == (2.5, "")


def test_what_is_recorded_is_judged_again_by_the_rules_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(measured_pages, "DATA", tmp_path)
    claim = {"quantity": "q", "paper": 2.0, "ours": 2.0, "unit": "x", "held_pct": None, "verdict": "does not hold",
             "rule": "an old rule", "why": "old", "note": ""}  # fmt: skip
    other = {**claim, "verdict": "not comparable", "rule": "not compared", "why": "put in"}
    record = {"topics": [{"name": "etf-figure-3", "claims": [claim, other], "others": {}}]}
    (tmp_path / "reproduce-full.json").write_text(json.dumps(record))
    measured_pages.judge()
    found, same = json.loads((tmp_path / "reproduce-full.json").read_text())["topics"][0]["claims"]
    assert (found["verdict"], found["why"]) == ("holds", "1 times the paper's value")
    assert "within 5%" in found["rule"]
    assert same == other


def rejudged(name, claims, others=None):
    topic = {"name": name, "notes": ["stale"], "claims": claims, "others": others or {}}
    measured_pages.rejudge(topic)
    return topic, {claim["quantity"]: claim for claim in topic["claims"]}


def recorded_claim(quantity, ours, paper=True):
    return {"quantity": quantity, "paper": paper, "ours": ours, "unit": "-", "least": None, "most": None,
            "held_pct": 100.0 * ours, "verdict": "holds", "rule": "an old rule", "why": "old", "note": ""}  # fmt: skip


def test_a_tie_is_found_in_the_record():
    quantity = "Table 4: GRU fares much better than Bi-LSTM and CNN, in under-prediction and in MAE, Venus"
    others = {f"Table 4: quantile .5, {name}: {what}, Venus": value for name in ("GRU", "Bi-LSTM", "CNN")
              for what, value in (("under-prediction", 20.7), ("MAE", 0.56))}  # fmt: skip
    _, claims = rejudged("cuff", [recorded_claim(quantity, ours=False)], others)
    assert claims[quantity]["verdict"] == "not comparable"
    noted = recorded_claim(quantity, ours=False) | {"note": "a tie: all networks come out alike; GRU 20.7%"}
    _, claims = rejudged("cuff", [noted], others)
    assert claims[quantity]["why"] == noted["note"]  # said once
    others["Table 4: quantile .5, CNN: MAE, Venus"] = 0.7
    _, claims = rejudged("cuff", [recorded_claim(quantity, ours=False)], others)
    assert claims[quantity]["verdict"] == "does not hold"


def test_recorded_claims_and_notes_are_those_of_the_code():
    for topic, _ in measured_pages.results().values():
        now = json.loads(json.dumps(topic))
        measured_pages.rejudge(now)
        assert now == topic, topic["name"]
        assert topic["notes"], topic["name"]


def test_a_spread_that_does_not_show_is_the_same():
    claim = {"held_pct": None, "least": 0.91901, "most": 0.91902}
    assert measured_pages._spread(claim, 3) == "the same"
    assert measured_pages._spread({**claim, "most": 0.93}, 3) == "0.919 to 0.93"


def test_a_row_without_values_is_not_shown():
    for text in measured_pages.pages().values():
        assert not re.search(r"^\| price \|\s+kWh", text, flags=re.M)


def test_the_page_says_how_long_everything_takes_together():
    whole = sum(topic["wall_s"] for topic, _ in measured_pages.results().values())
    assert f"took {measured_pages._time(whole)} one run after another" in " ".join(measured_pages.times().split())


def test_every_topic_has_a_time_at_every_extent():
    kept = json.loads((DATA / "times.json").read_text(encoding="utf-8"))
    assert {frozenset(each["topics"]) for each in kept.values()} == {frozenset(measured_pages.results())}


def test_a_field_that_was_not_recorded_is_an_error():
    with pytest.raises(KeyError):
        measured_pages.filled("{etf-figure-3 | no such quantity}")


def written() -> dict[str, str]:
    """Return the texts that pages are made from, by name."""
    return {**measured_pages.remarks(), **{form.stem: form.read_text(encoding="utf-8") for form in FORMS}}


@pytest.mark.parametrize("name", list(written()))
def test_texts_have_no_typed_results(name):
    """Numbers outside fields are figures, tables, sizes, and settings as code: no percentage and no other decimal."""
    allowed = {"3.3", "4.3", "4.4", "3.4", "6.5", "5.4", "5.5", "5.6", "3.11"}  # sections, definitions, a version
    bare = re.sub(r"\{rows: .*?\{end\}", "", written()[name], flags=re.S)
    bare = re.sub(r"\{[^{}]*\}", "", bare)
    assert set(NUMBER.findall(CODE.sub("", bare))) <= allowed


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "explanation").glob("*.md")), ids=lambda page: page.stem)
def test_tables_of_results_are_generated(page):
    """A table that is typed has definitions: at most a few of its cells are decimals or percentages."""
    if page in (measured_pages.PAGES / "explanation" / "claims.md", *(page.parent / form.name for form in FORMS)):
        return  # generated whole
    bare = CODE.sub("", measured_pages.BLOCK.sub("", page.read_text(encoding="utf-8")))
    for table in re.findall(r"(?:^\|.*\n)+", bare, flags=re.M):
        cells = [cell for line in table.splitlines() for cell in line.split("|")[2:]]
        assert sum(bool(NUMBER.search(SECTION.sub("", cell))) for cell in cells) <= 4, table


CONVERTED = ("explanation/capacity.md", "explanation/fairness.md", "explanation/fleet.md", "explanation/forecasting.md",
             "explanation/forecasting-networks.md", "explanation/placement.md", "explanation/timeslicing.md",
             "how-to/llms.md")  # fmt: skip


SETTINGS = {  # decimals and percentages outside what is generated: versions, sections of papers, settings, definitions
    "README.md": "2.0 3.11 3.13",
    "docs/explanation/cost-models.md": "0.00023 0.23 1.68 5.5 18.61",
    "docs/explanation/forecasting.md": "3.2 3.3",
    "docs/explanation/forecasting-networks.md": "3.2",
    "docs/explanation/mapping.md": "0.01 0.05 0.1 0.1% 0.9 10% 3.5 3.6 4.2 4.3 4.4 5.1 5.5 5.7",
    "docs/explanation/mig.md": "1% 5% 10%",
    "docs/explanation/partitioning.md": "2.2 3.2 3.3 3.4 4.1 4.2 4.3 5.1 5.3",
    "docs/explanation/peers.md": "0.001 0.01 0.07 0.5 0.8 1.1 1.15 1.35 1.5 2% 3% 25% 30% 9.15 2304.06381",
    "docs/explanation/unknown-run-times.md": "1.1",
    "docs/how-to/fleet.md": "0.95 1.3 95%",
    "docs/how-to/identity.md": "1.2 1.3",
    "docs/how-to/init.md": "10%",
    "docs/how-to/jobs.md": "5%",
    "docs/how-to/kubernetes.md": "1.20 1.22 1.27 3.11 3.9",
    "docs/how-to/operations.md": "0.1 1.22 1.9 3.11 3.13 3.5 22.05 127.0",
    "docs/how-to/serving.md": "0.0 0.1 0.25 0.28 1.2 1.3 2.60 2.73 3% 127.0",
    "docs/how-to/store.md": "3.35 3.4 3.40 10.5 10.11",
    "docs/reference/engines.md": "1.20 1.22 1.25 1.28 3.4 3.9 5.3 22.05 23.11 24.05",
    "docs/reference/workloads.md": "0.28 2.1 3.1 4.57 5.1 9.0 9.5",
    "docs/tutorials/capacity-planner.md": "98%",
    "docs/tutorials/index.md": "3.11 3.13",
    "docs/tutorials/live-fleet.md": "0.1 0.7 2.4 127.0",
    "docs/tutorials/operator.md": "0.1 127.0",
    "docs/tutorials/serving-engineer.md": "70%",
}


@pytest.mark.long
def test_no_page_has_a_number_that_is_not_known_to_be_a_setting():
    found, generated = {}, measured_pages.pages()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))):
        name = str(path.relative_to(ROOT))
        if path in generated and not measured_pages.BLOCK.search(path.read_text(encoding="utf-8")):
            continue  # it is generated as a whole
        if "docs/data/" in name or path.name == "not-reproduced.md":
            continue  # forms have a test of their own, and so has that page
        bare = CODE.sub("", measured_pages.BLOCK.sub("", path.read_text(encoding="utf-8")))
        if numbers := set(NUMBER.findall(bare)):
            found[name] = numbers
    assert found == {name: set(known.split()) for name, known in SETTINGS.items()}


@pytest.mark.parametrize("name", CONVERTED)
def test_pages_have_no_typed_results(name):
    """Outside what is generated, percentages and decimals are settings as code, and numbers of a paper's sections."""
    bare = measured_pages.BLOCK.sub("", (measured_pages.PAGES / name).read_text(encoding="utf-8"))
    bare = re.sub(r"(?<=section )\d\.\d", "", CODE.sub("", bare))
    assert NUMBER.findall(bare) == []


def test_the_headline_of_a_paper_is_not_typed_as_code():
    """A percentage in code is an aim or a setting; the saving that CUFF claims is a value of the paper, so a field."""
    saving = measured_pages.filled("{paper: cuff | Fig. 5: saving at a target of 98%, GRU, calibrated, Philly}")
    pages = [(measured_pages.PAGES / name).read_text(encoding="utf-8") for name in CONVERTED]
    for text in (*written().values(), *(measured_pages.BLOCK.sub("", page) for page in pages)):
        assert f"`{saving}%`" not in text


def test_what_is_recorded_is_shown():
    shown = {key for text in written().values() for key in KEY.findall(text)}
    assert shown == {path.stem for path in benchmark_pages.KEPT.glob("*.json")}


def test_what_the_page_of_peers_says_is_so_in_its_tables():
    """Each line is a sentence below the tables of peers.md, in its order: rewrite both where this fails."""
    kept = benchmark_pages.recorded("sia-peers")["result"]
    places, own = ("core-1", "core-2", "core-3"), "completion"
    runs = {(run["workload"], run["policy"], run["rounds"]): run for run in kept["runs"]}
    peers = {(run["policy"], run["rounds"]) for run in kept["runs"] if run["policy"][0].isupper()}
    rest = {peer for peer in peers if not peer[0].startswith(("Sia", "Pollux"))}

    def of(what, where, policy, rounds="360 s"):
        return runs[where, policy, rounds][what]

    def mean(*run):
        return of("mean_s", *run)

    def p99(*run):
        return of("p99_s", *run)

    assert {row["workload"] for row in kept["peers"]} == {"core-1", "core-3"}
    assert [row["workload"] for row in kept["peers"] if row["policy"].startswith("Sia")] == ["core-3"]
    near = [abs(row["mean_off"]) for row in kept["peers"] if row["policy"] in ("Gavel fifo", "Gavel max-sum")]
    assert max(near) <= 0.002
    for row in kept["peers"]:
        assert mean(row["workload"], own) < row["their_mean_s"]
        assert p99(row["workload"], own) < row["their_p99_s"]
    (fixed,) = (row for row in kept["peers"] if row["policy"] == "Sia, power 0.5")
    assert mean("core-3", own) > 0.9 * fixed["their_mean_s"]
    sia = {where: mean(where, "Sia, power 0.5", "60 s") for where in places}
    assert all(sia[where] < mean(where, own) for where in places)
    assert [where for where in places if sia[where] < mean(where, own, "60 s")] == ["core-1", "core-2"]
    assert all(mean(where, "Pollux", "60 s") < mean(where, own) for where in places)
    below = [where for where in places if mean(where, "Pollux", "60 s") < mean(where, own, "60 s")]
    assert below == ["core-1", "core-2"]
    for rounds in ("360 s", "60 s"):
        assert all(p99(where, own, rounds) < p99(where, "Sia, power 0.5", "60 s") for where in places)
        assert [where for where in places if p99(where, own, rounds) > p99(where, "Pollux", "60 s")] == ["core-2"]
    steadier = [where for where in places if mean(where, "completion, predicted", "60 s") < mean(where, own, "60 s")]
    assert steadier == ["core-1", "core-2"]
    assert all(mean(where, "Themis, auction") < mean(where, "Themis") for where in places)
    for where in places:
        assert min(mean(where, *peer) for peer in rest) > max(mean(where, *peer) for peer in peers - rest)
    least = [min(rest, key=lambda peer: mean(where, *peer))[0] for where in places]
    assert least == ["Themis, auction", "Themis, auction", "Gavel min-jct"]
    assert all(mean(where, "completion, power 1") < mean(where, *peer) for where in places for peer in rest)
    assert all(mean(where, own) < 1.01 * mean(where, *peer) for where in places for peer in rest)
    for peer in ("Gavel max-min", "Tiresias"):
        assert all(mean(where, "completion, unknown") < mean(where, peer) for where in places)
    by_tail, by_mean = (sorted((run for run in runs if run[0] == "core-2"), key=lambda run: of(what, *run))
                        for what in ("p99_s", "mean_s"))  # fmt: skip
    assert (by_tail[0][1], by_mean[-2][1]) == ("Gavel fifo", "Gavel fifo")
    assert all(what(where, own) < what(where, "Gavel fifo") for where in ("core-1", "core-3") for what in (mean, p99))
    assert all(p99(where, own) < p99(where, "completion, power 1") for where in places)
    assert [where for where in places if mean(where, own) > mean(where, "completion, power 1")] == ["core-1", "core-2"]
    assert [where for where in places if p99(where, "completion, power 2") < p99(where, own)] == ["core-3"]
    for where in places:
        assert of("energy_kwh", where, "srtf") < of("energy_kwh", where, own)
        assert p99(where, "srtf") > p99(where, own)
    assert [where for where in places if mean(where, "srtf") < mean(where, own)] == ["core-1", "core-2"]
    shorter = {(where, policy): mean(where, policy, "60 s") < mean(where, policy) for where, policy, rounds in runs
               if rounds == "60 s" and (where, policy, "360 s") in runs}  # fmt: skip
    assert all(shorter[pair] for pair in shorter if pair[1].startswith(("srtf", "lookahead")) or pair[0] == "core-3")
    known = (own, "completion, power 1", "completion, power 2")
    assert not any(shorter["core-2", policy] for policy in known)


def test_what_the_page_of_peers_says_of_batches_that_adapt_is_so_in_its_tables():
    """As above, of the part on batch sizes that adapt."""
    kept = benchmark_pages.recorded("sia-adaptive")["result"]
    runs = {(run["workload"], run["policy"], run["rounds"]): run for run in kept["runs"]}
    places, energy = ("core-1", "core-3"), "energy_kwh"
    assert [row["workload"] for row in kept["peers"]] == list(places)
    assert all(-0.1 < row["mean_off"] < 0 and row["median_off"] < 0 for row in kept["peers"])
    for row in kept["replays"]:
        assert -0.03 < row["by_fraction"]["off"] < 0
        assert row["by_fraction"]["job_off"] < 0.03
        assert 0.01 < 1 - row["by_epoch"]["mean_s"] / row["by_fraction"]["mean_s"] < 0.03
    sia = {where: runs[where, "Sia", "60 s"] for where in places}
    own = {where: runs[where, "completion", "60 s"] for where in places}
    assert own["core-3"]["mean_s"] < sia["core-3"]["mean_s"]
    assert own["core-1"]["mean_s"] > sia["core-1"]["mean_s"]
    assert all(sia[where]["p99_s"] < own[where]["p99_s"] for where in places)
    theirs = {row["workload"]: (row["their_mean_s"], row["their_p99_s"]) for row in kept["peers"]}
    for where in places:
        resizes, unknown, pollux = (runs[where, name, "60 s"] for name in ("resizing", "resizing, unknown", "Pollux"))
        for key, limit in zip(("mean_s", "p99_s"), theirs[where], strict=True):
            assert resizes[key] < min(sia[where][key], pollux[key], limit)
            assert abs(pollux[key] / sia[where][key] - 1) < 0.03
        assert resizes[energy] > max(sia[where][energy], pollux[energy])
        assert (unknown["mean_s"] < sia[where]["mean_s"]) == (where == "core-3")
        assert unknown["p99_s"] > sia[where]["p99_s"]
    for (where, policy, _), run in runs.items():
        if policy in ("srtf", "lookahead"):
            assert run["mean_s"] > sia[where]["mean_s"]
            assert run[energy] < min(other[energy] for key, other in runs.items() if key[0] == where and
                                     key[1] not in ("srtf", "lookahead"))  # fmt: skip
    bert, cifar10, imagenet = kept["epochs"]
    assert max(bert["most"], 1 / bert["least"]) < 1.01
    assert min(cifar10["least"], imagenet["least"]) < 0.5


def test_what_the_page_says_of_published_schedulers_on_philly_is_so_in_its_table():
    rows = benchmark_pages.recorded("placement-peers")["result"]["rows"]
    cells = {(row["load"], row["malleable"]): {} for row in rows}
    for row in rows:
        cells[row["load"], row["malleable"]][row["policy"]] = row
    ours, limited = "lookahead 0.01", "limited 0.01"
    assert len(cells) == 4
    for (load, malleable), cell in cells.items():
        assert cell[ours]["dominated_by"] == cell[limited]["dominated_by"] == ""
        least = sorted(cell, key=lambda policy: cell[policy]["energy_kwh"])
        assert least[:2] == [limited, ours]
        if malleable:
            ahead = {name for name, row in cell.items() if row["mean_jct_s"] < cell[ours]["mean_jct_s"]}
            assert ahead - {"srtf"} == {"pollux", "powerflow 2", *(["sia"] if load < 1 else [])}
            more = [cell[name]["energy_kwh"] / cell[ours]["energy_kwh"] - 1 for name in ahead - {"srtf"}]
            assert 0.08 < min(more) <= max(more) < 0.18
            assert cell["powerflow"]["energy_kwh"] > cell["powerflow 2"]["energy_kwh"]


def test_rows_of_peers_are_not_named_like_solvers_of_another_meaning():
    from typing import get_args

    from commonwatt.model.policies import SolverName

    ours = {"completion", "srtf", "lookahead"}
    for run in benchmark_pages.recorded("sia-peers")["result"]["runs"]:
        assert run["policy"].partition(",")[0] not in set(get_args(SolverName)) - ours


def test_the_counts_of_a_paper_are_those_of_the_record():
    said = measured_pages.filled("{verdicts: etf}")
    claims = [claim for topic, _ in measured_pages.results().values() if topic["name"].startswith("etf-")
              for claim in topic["claims"]]  # fmt: skip
    holds, changes, fails, none = (
        [c for c in claims if c["verdict"] == verdict] for verdict in measured_pages.VERDICTS
    )
    by_hand = [claim for claim in holds + changes if "tests our implementation" in claim["rule"]]
    assert " ".join(said.split()) == (
        f"of {len(claims)} claims {len(holds)} hold, {len(changes)} hold with changes, {len(fails)} do not hold, and "
        f"{len(none)} are not comparable. Of the {len(holds + changes)} that hold, with changes or without, "
        f"{len(by_hand)} are by definition or worked by hand"
    )
    page = (measured_pages.PAGES / "explanation" / "measured.md").read_text(encoding="utf-8")
    assert " ".join(said.split()) in " ".join(page.split())
    with pytest.raises(KeyError):
        measured_pages.filled("{verdicts: nobody}")


def test_the_leaderboard_says_that_budgets_differ():
    page = " ".join(measured_pages.leaderboard_page().split())
    for suite, solver in (("placement", "local-search"), ("placement", "random-greedy"), ("mapping", "auto")):
        number = measured_pages.evaluations_of(suite, solver)
        assert f"`{solver}`" in page
        assert page.count(number) >= 2  # in the text and in the table
    for text in (page, (ROOT / "docs" / "how-to" / "plugins.md").read_text(encoding="utf-8")):
        assert "**Budgets differ.**" in text
        assert "`SearchResult.evaluations`" in text  # a plugin counts for itself


def test_the_page_of_plugins_says_what_check_does():
    from commonwatt.cli.bench import command

    (check,) = (option for option in command.params if option.name == "check")
    said = check.help.partition("; ")[2].removesuffix(".")
    assert f"# {said}\n" in (ROOT / "docs" / "how-to" / "plugins.md").read_text(encoding="utf-8")


def test_recorded_commands_can_be_repeated():
    for path in benchmark_pages.KEPT.glob("*.json"):
        kept = json.loads(path.read_text(encoding="utf-8"))
        first, *words = kept["command"].split()
        assert first in ("python", "commonwatt"), path.name
        assert first != "python" or words[0] == "-m", path.name
        assert not any(word.startswith("/") for word in words), path.name
        assert kept["cores"] >= 1, path.name
        assert len(kept["load"]) == 2, path.name


FOUND = {
    "command": "python -m benchmarks.made --seeds 3",
    "load": [2.5, 0.5],
    "result": {
        "rows": [
            {"size": 1, "policy": "fifo", "s": 0.25, "proven": True, "more": None, "of": {"5": 0.5}},
            {"size": 1, "policy": "easy", "s": 0.5, "proven": False, "more": 0.1, "of": {"5": 1.5}},
        ],
        "by_name": {"tick": {"ms": 1.0}},
    },
}


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(benchmark_pages, "_all", lambda: {"made": FOUND})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{command: made}", "`python -m benchmarks.made --seeds 3`"),
        ("{load: made}", "0.5 to 2.5"),
        ("{value: made rows[1][s]:*1000 .0f}", "500"),
        ("{value: made rows[0][s]:/0.5 .1f}", "0.5"),
        ("{value: made rows[0][of][5]:.1f}", "0.5"),
        ("{value: made rows[0][more][further]:.1f@none}", "none"),
        ("{less: made rows[0][s] | rows[1][s]:.0%}", "50%"),
        (
            "{rows: made rows}\n| a |\n| {size} {proven:?yes/no}{more:~, <= ~.1f} |\n{end}",
            "| a |\n| 1 yes |\n| 1 no, <= 0.1 |",
        ),
        ("{rows: made rows | policy=easy, size=1}\n| {s:.2f} |\n{end}", "| 0.50 |"),
        ("{rows: made by_name}\n| {name} | {ms:.0f} |\n{end}", "| tick | 1 |"),
        (
            "{pivot: made rows | size | policy | s:.2f}",
            "| size | fifo | easy |\n| ---: | ---: | ---: |\n| 1 | 0.25 | 0.50 |",
        ),
    ],
)  # fmt: skip
def test_fields_of_benchmarks(made, text, shown):
    assert benchmark_pages.shown(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "{value: other rows[0][s]:.1f}",
        "{value: made rows[0][absent]:.1f}",
        "{rows: made rows | policy=srtf}\n| {s} |\n{end}",
        "{pivot: made rows | size | policy | absent}",
    ],
)
def test_what_was_not_recorded_is_an_error(made, text):
    with pytest.raises(KeyError):
        benchmark_pages.shown(text)


def test_a_command_is_recorded_with_what_it_printed(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark_pages, "KEPT", tmp_path / "kept")
    program = "import json; print(json.dumps({'rows': [{'s': 0.12345678, 'long': [1, 2]}]}))"
    benchmark_pages.record("one", [sys.executable, "-c", program, "--json", "--out", "somewhere"], ["long"])
    kept = json.loads((tmp_path / "kept" / "one.json").read_text(encoding="utf-8"))
    assert kept["result"] == {"rows": [{"s": 0.123457}]}
    assert "--json" not in kept["command"]
    assert "somewhere" not in kept["command"]


def test_not_reproduced_has_no_number_outside_what_is_generated():
    page = (ROOT / "docs" / "explanation" / "not-reproduced.md").read_text(encoding="utf-8")
    papers = page[: page.index("## Not tested")]
    assert NUMBER.findall(measured_pages.BLOCK.sub("", papers)) == []


def test_recorded_verdicts_are_those_of_the_rules():
    seen = set()
    for topic, _ in measured_pages.results().values():
        for claim in topic["claims"]:
            if claim["rule"] == "not compared":  # the program that was run says why, and gives no rule
                continue
            values = {key: claim[key] for key in ("quantity", "paper", "ours", "unit", "held_pct")}
            found = judged(topic["name"], [ReproduceRow(**values, comparable=True, note="")])
            assert (found.verdict, found.rule, found.why) == (claim["verdict"], claim["rule"], claim["why"])
            seen.add(found.verdict)
    assert seen >= {"holds", "holds with changes", "does not hold"}


def test_every_topic_of_the_papers_was_recorded():
    from commonwatt.reproduce.registry import of_papers

    assert set(measured_pages.results()) == {topic.name for topic in of_papers()}


@pytest.mark.parametrize(("name", "extent"), [("bench", "default"), ("bench-quick", "quick")])
def test_recorded_scores_are_of_these_suites(name, extent):
    from commonwatt.bench.decisions import SUITES

    recorded = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    assert recorded["extent"] == extent
    assert {s["name"]: s["version"] for s in recorded["suites"]} == {s.name: s.version for s in SUITES}
    for suite in SUITES:
        (own,) = [s for s in recorded["suites"] if s["name"] == suite.name]
        names = {solver["name"] for solver in own["solvers"] if solver["kind"] in ("ours", "baseline")}
        entrants = [each for each in suite.entrants(extent == "quick") if extent != "quick" or not each.few]
        assert names == {each.name for each in entrants if each.kind in ("ours", "baseline")}
