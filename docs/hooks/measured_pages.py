"""Pages of what was reproduced and of the leaderboard, from the JSON in ``docs/data``: no number there is typed.

``python docs/hooks/measured_pages.py`` writes them again. Before that, after a run,

    python docs/hooks/measured_pages.py --record out/reproduce        # of ``commonwatt reproduce all``
    python docs/hooks/measured_pages.py --record out/long full-long   # of a further one, beside the first
    python docs/hooks/measured_pages.py --times out/quick             # of a smaller extent: how long it takes only
    cp bench.json docs/data/bench.json                                # of ``commonwatt bench --out bench.json``

keeps what a page needs of the results: a topic of the largest extent that was recorded. A run of some topics replaces
these in a record of its extent and leaves the others. After a change of the rules alone,

    python docs/hooks/measured_pages.py --judge

judges what is recorded again, with today's notes; what was measured stays. Pages are generated whole, as
those with a form in ``docs/data/pages``, or between ``<!-- recorded: NAME -->`` and ``<!-- end -->``: the text called
NAME of ``docs/data/remarks.txt``. In both
``{topic | quantity}`` is our value, ``{paper: topic | quantity}`` the paper's, ``{does not hold: PREFIX}`` a list of
the claims of a paper with that verdict, ``{verdicts: PREFIX}`` how many of its claims have each, and ``{evaluations:
SUITE SOLVER}`` those of a solver on the leaderboard. What benchmarks gave is kept and shown by ``benchmark_pages.py``.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import benchmark_pages
import network_tables

DATA = Path(__file__).parents[1] / "data"
PAGES = DATA.parent
WIDTH = 140
EXTENTS = ("full", "default", "quick")
PAPERS = (("andreas", "ANDREAS (placement)"), ("etf", "ETF (timeslicing)"), ("cuff", "CUFF (forecasting)"),
          ("gsharp", "G# (mapping)"), ("market", "Fisher market thesis (partitioning)"))  # fmt: skip
VERDICTS = ("holds", "holds with changes", "does not hold", "not comparable")
BLOCK = re.compile(r"<!-- recorded: ([\w-]+) -->\n.*?<!-- end -->", re.S)
FIELD = re.compile(r"\{(paper: )?([a-z0-9-]+) \| ([^{}]+)\}")
LIST = re.compile(r"\{(holds with changes|does not hold|not comparable): (\w+)\}")
VERDICTS_OF = re.compile(r"\{verdicts: (\w+)\}")
EVALUATIONS = re.compile(r"\{evaluations: (\w+) ([\w-]+)\}")
CLAIM = ("quantity", "paper", "ours", "unit", "least", "most", "held_pct", "verdict", "rule", "why", "note")


def record(folder: Path, name: str | None = None) -> None:
    """Keep the result of a run in *folder* as ``reproduce-NAME.json``: what pages show of it. NAME: else its extent."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    topics = [
        {
            **{key: topic[key] for key in ("name", "title", "paper", "state", "reason", "stand_in", "seeds", "notes")},
            "wall_s": round(topic["wall_s"], 1),
            "claims": [{key: claim[key] for key in CLAIM} for claim in topic["claims"]],
            "others": {claim["quantity"]: claim["ours"] for claim in topic["others"]},
            "other_units": {claim["quantity"]: claim["unit"] for claim in topic["others"]},
        }
        for topic in result["topics"]
    ]
    kept = {key: result[key] for key in ("version", "command", "extent", "seed", "seeds")} | {"topics": topics}
    path = DATA / f"reproduce-{name or result['extent']}.json"
    if path.is_file():
        kept = merged(json.loads(path.read_text(encoding="utf-8")), kept)
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the record *old* with the topics of *new*; *new* alone if it has all of them, or is of another extent."""
    by_name = {topic["name"]: topic for topic in new["topics"]}
    alike = old["extent"] == new["extent"] and old["seed"] == new["seed"]
    if not alike or {topic["name"] for topic in old["topics"]} <= set(by_name):
        return new
    kept = [by_name.pop(topic["name"], topic) for topic in old["topics"]]
    return old | {"topics": [*kept, *by_name.values()]}


def judge() -> None:
    """Judge every recorded claim again, by the rules and with the notes as they are now."""
    for path in sorted(DATA.glob("reproduce-*.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        for topic in kept["topics"]:
            rejudge(topic)
        path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def rejudge(topic: dict[str, Any]) -> None:
    """Bring a recorded topic to what the code now says of what was measured: verdicts, and notes."""
    from commonwatt.model.results import ReproduceRow
    from commonwatt.reproduce.verdicts import judged, rule_of

    name = topic["name"]
    notes = notes_of(name)
    if notes is not None:
        topic["notes"] = list(notes)
    for claim in topic["claims"]:
        row = ReproduceRow(**{key: claim[key] for key in ("quantity", "paper", "ours", "unit", "held_pct", "note")},
                           comparable=True)  # fmt: skip
        rule = rule_of(name, row)
        if tie := _tie(topic, claim["quantity"]):
            why = claim["note"] if claim["note"].startswith(tie) else tie  # once on the page
            claim.update(verdict="not comparable", rule="not compared", why=why)
            continue
        ruled = claim["rule"] != "not compared" or rule.kind == "none" or bool(rule.part)
        if ruled and claim["unit"] != "s":  # else the run says why
            found = judged(name, [row])
            claim.update({key: getattr(found, key) for key in ("verdict", "rule", "why")})


def notes_of(name: str) -> tuple[str, ...] | None:
    """Return the notes that the code gives a topic."""
    from commonwatt.reproduce.papers import andreas_armida, andreas_sweep, cuff, etf_figures, gsharp, market

    if name == "andreas-armida":
        return andreas_armida.NOTES[:3]
    whole = {
        "andreas-table": andreas_armida,
        "andreas-scenario": andreas_sweep,
        "cuff": cuff,
        "etf": etf_figures,
        "gsharp": gsharp,
        "market": market,
    }
    return next((module.NOTES for prefix, module in whole.items() if name.startswith(prefix)), None)


def _tie(topic: dict[str, Any], quantity: str) -> str:
    """Return why a claim on which network fares better is none, where all of them come out alike."""
    from commonwatt.reproduce.papers.cuff_traces import TIE, tied

    if topic["name"] != "cuff" or "GRU fares much better" not in quantity:
        return ""
    log = quantity.rpartition(", ")[2]
    found = {
        name: tuple(
            topic["others"][f"Table 4: quantile .5, {name}: {what}, {log}"] for what in ("under-prediction", "MAE")
        )
        for name in ("GRU", "Bi-LSTM", "CNN")
    }
    return TIE if tied(found) else ""


def record_times(folder: Path) -> None:
    """Keep how long the run in *folder* took, by its extent."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    path = DATA / "times.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    old, took = kept.get(result["extent"]), {topic["name"]: round(topic["wall_s"], 1) for topic in result["topics"]}
    if old is not None and not set(old["topics"]) <= set(took):  # a run of some: the others stay, and no call made all
        kept[result["extent"]] = old | {"call_s": None, "topics": old["topics"] | took}
    else:
        called = {"command": result["command"], "cores": os.cpu_count(), "call_s": result.get("call_s")}
        kept[result["extent"]] = called | {"topics": took}
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def times() -> str:
    """Return a table of how long each paper takes, by extent: its runs, as if one after another."""
    kept = json.loads((DATA / "times.json").read_text(encoding="utf-8"))
    by_extent = {extent: each["topics"] for extent, each in kept.items()}
    by_extent["full"] = {name: topic["wall_s"] for name, (topic, _) in results().items()}
    extents = sorted(by_extent, key=EXTENTS.index, reverse=True)
    rows = [f"| runs of | {' | '.join(extents)} |", f"| --- |{' ---: |' * len(extents)}"]
    for prefix, name in (*PAPERS, ("", "all")):
        sums = [sum(s for n, s in by_extent[extent].items() if n.partition("-")[0] == prefix or not prefix)
                for extent in extents]  # fmt: skip
        rows.append(f"| {name} | {' | '.join(map(_time, sums))} |")
    called = [f"`{each['command']}` took {_time(each['call_s'])} on {each['cores']} cores"
              for each in kept.values() if each["call_s"]]  # fmt: skip
    whole = sum(by_extent["full"].values())
    longest = max(by_extent["full"].values())
    said = (
        f"All that is recorded of the full extent took {_time(whole)} one run after another: with two at a time "
        f"{_time(max(whole / 2, longest))} at best, with four {_time(max(whole / 4, longest))}."
    )
    return "\n\n".join(["\n".join(rows), wrapped(said), *([f"{'; '.join(called)}."] if called else [])])


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@cache
def results() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return each topic of the largest extent that has it, with the result it is from."""
    found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(DATA.glob("reproduce-*.json"))]
    for result in sorted(runs, key=lambda run: -EXTENTS.index(run["extent"])):
        found |= {topic["name"]: (topic, result) for topic in result["topics"] if topic["state"] == "done"}
    return found


def shown(value: Any) -> str:  # noqa: ANN401
    """Return a value as pages show it."""
    from commonwatt.report.redrawing import claim_value

    return claim_value(value)


def filled(text: str) -> str:
    """Return *text* with its fields filled in; raises ``KeyError`` for one that was not recorded."""

    def value(match: re.Match[str]) -> str:
        whose, name, quantity = match.groups()
        topic, _ = results()[name]
        for claim in topic["claims"]:
            if claim["quantity"] == quantity:
                return shown(claim["paper" if whose else "ours"])
        return shown(topic["others"][quantity])

    def listed(match: re.Match[str]) -> str:
        lines = []
        for topic, _ in results().values():
            if topic["name"].partition("-")[0] != match[2]:
                continue
            for claim in topic["claims"]:
                if claim["verdict"] == match[1]:
                    unit = {"-": "", "%": "%"}.get(claim["unit"], f" {claim['unit']}")
                    said = f"{shown(claim['ours'])} for {shown(claim['paper'])}{unit}"
                    if claim["held_pct"] is not None:
                        said = claim["why"]
                    lines.append(f"- {escaped(claim['quantity'])}: {said}.")
        return "\n".join(dict.fromkeys(lines)) or "- None."

    counted = VERDICTS_OF.sub(lambda match: verdicts_of(match[1]), benchmark_pages.shown(text))
    counted = EVALUATIONS.sub(lambda match: evaluations_of(match[1], match[2]), counted)
    return wrapped(LIST.sub(listed, FIELD.sub(value, counted)))


def verdicts_of(prefix: str) -> str:
    """Return how many claims of a paper have each verdict, and how many of those that are met say little."""
    from commonwatt.reproduce.verdicts import little

    every = [(claim["rule"], claim["verdict"]) for topic, _ in results().values()
             if topic["name"].partition("-")[0] == prefix for claim in topic["claims"]]  # fmt: skip
    if not every:
        raise KeyError(prefix)
    given = [verdict for _, verdict in every]
    met = [pair for pair in every if pair[1].startswith("holds")]
    few = "; ".join(f"{sum(own.values())} are {why}" for why, own in little(met).items() if own)
    return (
        f"of {len(every)} claims {given.count('holds')} hold, {given.count('holds with changes')} hold with changes, "
        f"{given.count('does not hold')} do not hold, and {given.count('not comparable')} are not comparable. "
        f"Of the {len(met)} that hold, with changes or without, {few or 'none is by definition'}"
    )


def evaluations_of(suite: str, solver: str) -> str:
    """Return how many candidates a solver of the leaderboard evaluated, over all problems of its suite."""
    recorded = json.loads((DATA / "bench.json").read_text(encoding="utf-8"))
    found = {(s["name"], each["name"]): each["evaluations"] for s in recorded["suites"] for each in s["solvers"]}
    return f"{found[suite, solver]:,}"


def wrapped(text: str) -> str:
    """Return *text* with its paragraphs and list items broken anew; tables and headings stay."""
    parts: list[str] = []
    for line in text.splitlines():
        goes_on = parts and parts[-1] and line and not line.startswith(("- ", "|", "#"))
        goes_on = goes_on and not parts[-1].startswith(("|", "#"))
        if goes_on:
            parts[-1] += f" {line.strip()}"
        else:
            parts.append(line)
    return "\n".join(part if part.startswith(("|", "#")) else _broken(part) for part in parts)


def _broken(text: str) -> str:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )  # fmt: skip


def escaped(text: str) -> str:
    """Return *text* as it can stand in a table."""
    return text.replace("|", "\\|").replace("<", "&lt;")


@cache
def remarks() -> dict[str, str]:
    """Return the texts of ``remarks.txt`` by name."""
    parts = re.split(r"^# ([\w-]+)\n", (DATA / "remarks.txt").read_text(encoding="utf-8"), flags=re.M)
    return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def renewed(page: str) -> str:
    """Return *page* with its recorded parts, and tables of networks, written again."""

    def written(name: str) -> str:
        return network_tables.TABLES[name]() if name in network_tables.TABLES else filled(remarks()[name])

    return BLOCK.sub(lambda m: f"<!-- recorded: {m[1]} -->\n{written(m[1])}\n<!-- end -->", page)


def commands() -> str:
    """Return the commands that were recorded, with what was run by each."""
    lines = []
    for command, extent in dict.fromkeys((r["command"], r["extent"]) for _, r in results().values()):
        names = [name for name, (_, r) in results().items() if r["command"] == command]
        what = "topics, each a figure or table or several of a paper" if len(names) > 1 else "topic"
        lines.append(f"- `{command}` ({extent} extent): {len(names)} {what}.")
    return "\n".join(lines)


def claims_page() -> str:
    """Return the page of all claims."""
    from commonwatt.reproduce.registry import left_out
    from commonwatt.reproduce.verdicts import legend

    parts = [
        "# Every claim, reproduced",
        "Generated by `make claims` from `docs/data/reproduce-*.json`, which these commands made:",
        commands(),
        filled(remarks()["claims"]),
        _counted(),
        "## How claims are judged",
        wrapped("\n".join(f"- {sentence}" for sentence in legend())),
        "## How long it takes",
        filled(remarks()["times"]),
        times(),
    ]
    for prefix, name in PAPERS:
        own = [topic for topic, _ in results().values() if topic["name"].partition("-")[0] == prefix]
        notes = dict.fromkeys(escaped(note) for topic in own for note in topic["notes"])
        parts += [f"## {name}", "What went in, and what was replaced:", wrapped("\n".join(f"- {n}" for n in notes))]
        for topic, result in results().values():
            if topic["name"].partition("-")[0] == prefix:
                parts += _topic(topic, result)
        without = next(
            own for paper, own in left_out().items() if paper.lower().replace("#", "sharp").find(prefix) >= 0
        )
        parts += [
            f"### {name.partition(' (')[0]}: figures and tables without claims",
            "\n".join(f"- {escaped(each)}." for each in without),
        ]
    return "\n\n".join(parts) + "\n"


def _counted() -> str:
    """Return how many claims have each verdict, and how many of these say little."""
    from commonwatt.reproduce.verdicts import little

    every = [(claim["rule"], claim["verdict"]) for topic, _ in results().values() for claim in topic["claims"]]
    found, given = little(every), [verdict for _, verdict in every]
    rows = [f"| verdict | claims | of them {' | '.join(found)} |", f"| --- | ---: |{' ---: |' * len(found)}"]
    for verdict in VERDICTS:
        numbers = " | ".join(str(own.get(verdict, 0)) for own in found.values())
        rows.append(f"| {verdict} | {given.count(verdict)} | {numbers} |")
    return "\n".join(rows)


def _topic(topic: dict[str, Any], result: dict[str, Any]) -> list[str]:
    seeds = f"{len(topic['seeds'])} seed{'s' * (len(topic['seeds']) > 1)}"
    head = f"`commonwatt reproduce {topic['name']}`, {result['extent']} extent, {seeds}, {_time(topic['wall_s'])}. "
    head += f"{escaped(topic['paper'])}."
    parts = [f"### {escaped(topic['title'])}", head]
    if topic["stand_in"]:
        parts.append(f"Missing, and replaced: {topic['stand_in']}.")
    if not topic["claims"]:
        return [*parts, "The paper prints no value."]
    rows = ["| claim | paper | ours | unit | seeds, draws | verdict |", "| --- | ---: | ---: | --- | --- | --- |"]
    rules: list[str] = []
    for claim in topic["claims"]:
        why = f": {claim['why']}" if claim["verdict"] == "not comparable" else ""
        rule, reading = claim["rule"], reading_of(topic["name"], claim)
        note = "; ".join(part for part in (claim.get("note", ""), reading) if part)
        if claim["verdict"] != "not comparable":
            if (said := rule.removesuffix(f"; {reading}")) not in rules:
                rules.append(said)
            why = f" [{rules.index(said) + 1}]"
        why += f" ({note})" if note and note != claim["why"] else ""
        rows.append(
            f"| {escaped(claim['quantity'])} | {shown(claim['paper'])} | {shown(claim['ours'])} | {claim['unit']} | "
            f"{_spread(claim, len(topic['seeds']))} | {claim['verdict']}{escaped(why)} |"
        )
    numbered = "\n".join(f"- [{number}] {rule}." for number, rule in enumerate(rules, 1))
    return [part for part in (*parts, "\n".join(rows), wrapped(numbered)) if part]


def reading_of(name: str, claim: dict[str, Any]) -> str:
    """Return how we read a claim that was compared, as its rule ends with."""
    from commonwatt.model.results import ReproduceRow
    from commonwatt.reproduce.verdicts import rule_of

    row = ReproduceRow(**{key: claim[key] for key in ("quantity", "paper", "ours", "unit")}, comparable=True)
    return "" if claim["verdict"] == "not comparable" else rule_of(name, row).said


def _spread(claim: dict[str, Any], seeds: int) -> str:
    drawn = claim["held_pct"] is not None and claim["held_pct"] not in (0.0, 100.0)
    if claim["held_pct"] is not None and (seeds > 1 or drawn):
        return f"yes for {claim['held_pct']:.0f}%"
    if claim["least"] is None and claim["held_pct"] is None:
        return ""
    if seeds == 1:
        return "one seed"
    least, most = shown(claim["least"]), shown(claim["most"])
    return "the same" if least == most else f"{least} to {most}"


def leaderboard_page() -> str:
    """Return the page of scores."""
    from commonwatt.model.suite_results import BenchResult
    from commonwatt.report.text import leaderboard

    result = BenchResult.model_validate_json((DATA / "bench.json").read_text(encoding="utf-8"))
    parts = [
        "# Leaderboard",
        f"Generated by `make claims` from `docs/data/bench.json`, made by `{result.command}`.",
        filled(remarks()["leaderboard"]),
        wrapped(leaderboard(result)),
    ]
    return "\n\n".join(parts) + "\n"


def pages() -> dict[Path, str]:
    """Return what every page should be."""
    written = (PAGES.parent / "README.md", *sorted(PAGES.glob("*/*.md")))
    texts = {path: path.read_text(encoding="utf-8") for path in written}
    forms = {PAGES / "explanation" / path.name: path for path in (DATA / "pages").glob("*.md")}
    return {
        PAGES / "explanation" / "claims.md": claims_page(),
        PAGES / "reference" / "leaderboard.md": leaderboard_page(),
        **{page: filled(form.read_text(encoding="utf-8")) + "\n" for page, form in forms.items()},
        **{path: renewed(text) for path, text in texts.items() if BLOCK.search(text)},
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        record(Path(sys.argv[2]), *sys.argv[3:4])
    if sys.argv[1:2] == ["--judge"]:
        judge()
    if sys.argv[1:2] == ["--times"]:
        record_times(Path(sys.argv[2]))
    for page, content in pages().items():
        page.write_text(content, encoding="utf-8")
