"""The verdict on a claim, computed from its values by a stated rule.

Each claim has one rule: how near ours must be to the paper's value to hold, and how near to hold with changes. Rules
look at numbers and at yes or no, never at notes. ``RULES`` lists those that differ from the two that others get.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from importlib.resources import files
from math import isfinite
from statistics import fmean, stdev
from typing import Any, Literal

import yaml

from commonwatt.model.results import ReproduceRow
from commonwatt.model.suite_results import ReproduceClaim, Verdict

__all__ = ["LEGEND", "RULES", "Rule", "RuleKind", "judged", "legend", "little", "rule_of"]

RuleKind = Literal["close", "less", "ratio", "yes", "none"]

MOSTLY_PCT, HALF_PCT = 90.0, 50.0
"""A claim that is yes for every seed holds from the first part of draws on; one below the second does not hold."""


@dataclass(frozen=True)
class Rule:
    """How the values of a claim are compared.

    Attributes
    ----------
    kind
        ``close``: by their difference, relative to the paper's value (absolute where that is 0). ``less``: the same,
        but any better value, which is a lesser one, holds with changes. ``ratio``: by the larger over the smaller, on
        the same side of 1. ``yes``: by the part of seeds or draws.
    holds, changes
        Largest distance to hold, and to hold with changes.
    change
        What had to be changed to compare at all: a claim that is met then holds with changes.
    why
        Of ``none``: why they cannot be.
    said
        How the claim is read, where that is ours: a definition, a threshold, one of two places of the paper.
    part
        Why yes does not make the whole claim true, and is not comparable; no refutes it. Empty: it does.
    """

    kind: RuleKind = "close"
    holds: float = 0.05
    changes: float = 0.10
    change: str = ""
    why: str = ""
    said: str = ""
    part: str = ""

    @property
    def words(self) -> str:
        """The rule as a sentence."""
        if self.part:
            return f"does not hold if no for any seed; yes is not compared: {self.part}"
        match self.kind:
            case "close":
                said = f"holds within {self.holds:.0%} of the paper's value, with changes within {self.changes:.0%}"
            case "less":
                said = (
                    f"holds within {self.holds:.0%} of the paper's value, with changes within {self.changes:.0%} or if "
                    "better (less)"
                )
            case "ratio":
                said = (
                    f"holds within a factor of {self.holds:g} on the same side of 1, with changes within one of "
                    f"{self.changes:g}, as the paper does not say which random mappings it has"
                )
            case "yes":
                said = (
                    f"holds if yes for every seed and {MOSTLY_PCT:.0f}% or more of the draws, with changes if for "
                    f"{HALF_PCT:.0f}% or more of the draws, or of the seeds where nothing is drawn"
                )
            case "none":
                return "not compared"
        more = f"only with changes, as {self.change}" if self.change else "", self.said
        return "; ".join((said, *filter(None, more)))

    def of_number(self, paper: float, ours: float) -> Verdict:
        """Return the verdict on two numbers."""
        if self.kind == "ratio":
            if paper <= 0 or ours <= 0 or (ours > 1) != (paper > 1):
                return "does not hold"
            apart = max(ours / paper, paper / ours)
            if apart <= self.holds:
                return self._met()
            return "holds with changes" if apart <= self.changes else "does not hold"
        off, scale = abs(ours - paper), abs(paper) or 1.0
        if self.kind == "less" and paper - ours > self.holds * scale:
            return "holds with changes"
        if off <= self.holds * scale * (1 + 1e-12):
            return self._met()
        return "holds with changes" if off <= self.changes * scale else "does not hold"

    def of_yes(self, held_pct: float, *, stated: bool) -> Verdict:
        """Return the verdict on a claim that is yes for *held_pct* of seeds or draws, and for the inputs *stated*."""
        if stated and held_pct >= MOSTLY_PCT:
            return self._met()
        return "holds with changes" if held_pct >= HALF_PCT else "does not hold"

    def _met(self) -> Verdict:
        return "holds with changes" if self.change else "holds"


_FAIR = Rule(change="a tenant of stated power stands in for MobileNet-V2")
_T5 = "T5 stands in for TransformerXL, whose own layers take six times as long"
_LESS = Rule("less")
_RANDOM = Rule("ratio", 1.25, 2.0)
"""Of means over random mappings."""
OTHER_DATA = "the data are others than the paper's"
_ON_OTHERS = Rule("yes", change=OTHER_DATA)
"""Of two of our own results on the same data, which the paper says of its own."""
IMPLEMENTATION = "it tests our implementation, no more"
FITTED = "which networks they are was found by these numbers"

_none = partial(Rule, "none", 0.0, 0.0, "")
_OWN_RUNS = _none("run times and power are ours, chosen so that the experiment is possible")
_BANDWIDTHS = _none("the paper does not print the bandwidths")
_VISION = Rule(change=f"layers are as in the published code: no stride or padding, none fully connected; and {FITTED}")
_OF_THREE = "that the printed average is of the three networks shown is inferred from the numbers: the text says all"
_UNPRINTED = _none("the paper does not print the layers and inputs of the recommendation networks: ours are others")
_SIMULATED = "a simulated device stands in for the Jetson TX2"
_THREADS = "a PE is a thread, where the thesis also says that each core is one"
_SPACE = Rule("yes", change=f"shares of space instead of turns of time, and {_THREADS}")
_DEFINED = f"follows from how the policy is defined: {IMPLEMENTATION}"
_PERFECT = "how near energies must be to be perfectly fair is ours, as said at the top"
_RULES_ONLY = Rule("yes", part="of rules alone; the paper says it of any method, which is judged with the searches")
_SWEEP = Rule(
    "yes", part="of rules alone; the paper says it of any method, and no optimiser was run over its bandwidths"
)
_MEANS = _none(
    "the paper does not say which methods it averages, and it depends on that: most of ours is of rules that draw"
)
_INPUTS = _none("it depends on F, weights, threads and clocks, which the thesis does not print: ours are others")
_TIMES = "G# is compiled here and was not there, so times over its say nothing of the methods"

RULES: tuple[tuple[str, str, Rule], ...] = (
    *((f"andreas-scenario-{number}", "total cost saved by randomized greedy, mean*", _none(
        f"printed as {about}, on average; same N, J, nodes and rho; jobs, arrivals and load are ours"))
      for number, about in ((1, "around 62%"), (2, "almost 30%"))),
    ("andreas-scenario-1", "*takes longer to decide*", replace(_ON_OTHERS, said=(
        f"follows from a thousand candidates against one pass: {IMPLEMENTATION}"))),
    *((f"andreas-scenario-{number}", what, replace(_ON_OTHERS, said="the range of due dates was chosen after results"))
      for number in (1, 2) for what in ("*time to complete*", "total cost is less*")),
    *(("andreas-table-3", what, _OWN_RUNS) for what in ("jobs that end after*", "tardiness cost*")),
    ("andreas-armida", "*", _OWN_RUNS),
    *(("cuff", what, replace(_ON_OTHERS, said=f"follows by definition: {IMPLEMENTATION}")) for what in (
        "*the threshold method saves less*", "*under-prediction falls as*")),
    *(("cuff", f"*{what}*Alibaba", _none("of some 35 GPUs errors are few GPUs whatever the forecast: it says little"))
      for what in ("MAE [!,]", "GRU fares much better")),
    ("cuff", "*GRU fares much better*", replace(_ON_OTHERS, said="the threshold of much better is ours, see the top")),
    ("cuff", "*comparable to the point*", replace(_ON_OTHERS, said="the threshold of comparable is ours, see the top")),
    ("cuff", "Fig. 4: above the median*", replace(_ON_OTHERS, said=(
        "the paper: comparable, at higher than median workload; read as MAE within its 2 points at such instants"))),
    ("cuff", "Fig. 4: under high demand*", replace(_ON_OTHERS, said=(
        "the thresholds of high demand and of significantly less, and CUFF's level, are ours, see the top"))),
    ("cuff", "Table 4: *under-predicts less*", replace(_ON_OTHERS, said=(
        "section 4.3 says so by log; its summary says that CUFF always does: judged by the former"))),
    ("cuff", "Table 4: MAE within*", _ON_OTHERS),
    ("cuff", "Fig. 4: under-prediction*", _none(
        "section 4.3, which has the figure: under-prediction, 7.6% of CUFF against 83%; abstract and section 5: "
        "performance, 83% against 7.6%; the log is of another year")),
    ("cuff", "*Philly", _none("demand is of GPUs that jobs request; the paper's, of GPUs allocated to running jobs")),
    ("etf-figure-2", "*same energy", replace(_FAIR, kind="yes", said=_DEFINED)),
    ("etf-figure-2", "*", replace(_FAIR, said=_DEFINED)),
    ("etf-figure-3", "*", Rule(said=f"worked by hand in the paper: {IMPLEMENTATION}")),
    ("etf-figure-5", "*F_S under EF", _none("put in: for two tenants it equals F_E under TF, which is")),
    ("etf-figure-5", "*", _FAIR),
    ("etf-figure-6", "*: improvement of F_S*", Rule(change=_SIMULATED)),
    ("etf-figure-6", "*all alike*", Rule(change=_SIMULATED, said=_DEFINED)),
    ("etf-figure-9", "*guaranteed share*", Rule(change=_SIMULATED, said=(
        f"judged by the formula with the figure's phi, not by the percentage printed beside it; {_DEFINED}"))),
    ("etf-figure-9", "*device is used", Rule(change=_SIMULATED, said=(
        f"what use is, is ours: time that is not idle over all; {_DEFINED}"))),
    ("etf-figure-9", "*: energies are *", Rule("yes", change=_SIMULATED, said="what equal energies are is ours")),
    ("etf-figure-9", "*", Rule(change=_SIMULATED)),
    ("etf-figure-6", "*grows with the disparity", Rule("yes", change="it grows up to some disparity and then stays")),
    ("etf-figure-7", "*largest phi*", replace(_FAIR, said=(
        f"the paper: for phi of less than 0.3, read as up to it; {_PERFECT}"))),
    ("etf-figure-7", "*at phi = 1*", replace(_FAIR, said=_DEFINED)),
    ("etf-figure-7", "*", _FAIR),
    ("etf-figure-8", "*", Rule("yes", change="a simulated device stands in for the GPU")),
    ("etf-figure-10", "*throughput of A2*", _none(
        "the text has neither A2's clock nor what the factor is over: both are ours, and others give others")),
    ("etf-figure-10", "*at a lower clock*", Rule("yes", change=_SIMULATED, said="the clock is ours, that of Fig. 9")),
    ("etf-figure-11", "*largest phi*", replace(_FAIR, said=_PERFECT)),
    ("etf-figure-11", "*", replace(_FAIR, said=_DEFINED)),
    *(("gsharp-figure-6", f"*{name}*", _UNPRINTED) for name in ("dlrm", "wide-deep", "ncf", "recommendation, average")),
    ("gsharp-figure-6", "*t5:*", Rule(change=_T5)),
    ("gsharp-figure-6", "*language, average*", Rule(change=_T5, said=_OF_THREE)),
    ("gsharp-figure-6", "*vision, average*", replace(_VISION, said=_OF_THREE)),
    *(("gsharp-figure-6", f"*{name}:*", _VISION) for name in ("mobilenet-v2", "resnet50", "shufflenet-v2")),
    ("gsharp-figure-6", "*on HB64, *", Rule("yes", said=FITTED, change=(
        f"recommendation networks are others than the paper's, and {_T5}"))),
    *((f"gsharp-figure-{number}", "*than * rule*", rule) for number, rule in (
        (7, _RULES_ONLY), (8, _SWEEP), (10, _RULES_ONLY))),
    ("gsharp-figure-11", "*fewer cycles*", Rule("yes", said=f"it picks one that has fewer: {IMPLEMENTATION}")),
    ("gsharp-figure-11", "*Random*", Rule("yes", change="the random layers are ours")),
    ("gsharp-searches", "*other methods over*", _MEANS),
    *((topic, "*until within 1%*over G#'s", _none(
        f"{_TIMES}; the text says 626 to 657 times, Table 7's seconds give 627 to 686"))
      for topic in ("gsharp-searches", "gsharp-learners")),
    *((topic, what, rule) for topic in ("gsharp-searches", "gsharp-learners") for what, rule in (
        ("*time of*over G#'s", _none(_TIMES)),
        ("*worse than G# by orders of magnitude*", _BANDWIDTHS),
        ("*orders of magnitude*", Rule("yes", said="bandwidths are those of Fig. 7 and 10")),
        ("*mean makespan*", _BANDWIDTHS), ("*makespan over*", _BANDWIDTHS))),
    ("gsharp-table-6", "*, batch ?*: * over *", _none("which of its batches is ours is not said: means are judged")),
    ("gsharp-table-6", "*: Raw over*", _RANDOM),
    ("gsharp-table-6", "*over the full search*", _LESS),
    *(("gsharp-table-7", what, _none("which rules are the elite is not printed, and it depends on that: see the note"))
      for what in ("*of the best rule over*", "*ends sooner than the best rule*")),
    ("gsharp-table-7", "*mean makespan*", _BANDWIDTHS),
    ("market", "user set 1: CFG2 has the largest*", _none("put in: F of k-means was chosen so that it has")),
    ("market", "user set 1: user 2 receives*", _none(
        "ambiguous: than user 3, who is named beside user 2 just before, or than both, which does not come out")),
    *(("market", what, Rule("yes", said=_DEFINED)) for what in (
        "*core clusters 1 and 2 have the same*", "*users 1 and 3 have the same*", "equal speedup: user 2 has*",
        "user set 3: all mechanisms*turns of time")),
    ("market", "no user is slower*of it)", Rule("yes", said=f"a theorem on shares of space: {IMPLEMENTATION}")),
    *(("market", what, _INPUTS) for what in ("*rounds until*", "*up to *")),
    ("market", "*turns of time", Rule("yes")),
    *(("market", what, _SPACE) for what in (
        "user set 3: speedups*", "*with its entitlement*", "*as entitlements*", "*utilization*")),
)  # fmt: skip
"""Topic, pattern of the quantity, rule; the first that fits. Others: ``yes`` for yes and no, else ``close``."""

_DRAWN = frozenset({"market"})
"""Topics whose yes and no are counted over draws of inputs that the paper does not print, not over seeds."""


def _texts() -> dict[str, Any]:
    """Return the legend's texts, with the numbers of the rules."""
    text = files("commonwatt.reproduce.papers").joinpath("legend.yaml").read_text(encoding="utf-8")
    texts: dict[str, Any] = yaml.safe_load(text.format(
        close_holds=f"{Rule().holds:.0%}", close_changes=f"{Rule().changes:.0%}", less_holds=f"{_LESS.holds:.0%}",
        ratio_holds=f"{_RANDOM.holds:g}", ratio_changes=f"{_RANDOM.changes:g}", mostly=f"{MOSTLY_PCT:.0f}%",
        half=f"{HALF_PCT:.0f}%",
    ))  # fmt: skip
    return texts


_OF_KIND: dict[RuleKind, str] = _texts()["kinds"]
LEGEND: tuple[str, ...] = (*_OF_KIND.values(), *_texts()["general"])
"""What the rules are and why, for the reader of a report."""


def legend() -> tuple[str, ...]:
    """Return ``LEGEND``, and the thresholds of ours within the claims of each paper, from the constants there."""
    names = ("andreas_sweep", "etf_runs", "cuff_traces", "gsharp_study", "market_cases")
    chosen = (import_module(f"commonwatt.reproduce.papers.{name}").CHOSEN for name in names)
    return *LEGEND, *chosen


def little(claims: Sequence[tuple[str, str]]) -> dict[str, Counter[str]]:
    """Return how many of *claims*, rules and verdicts, say little, by why and verdict."""
    whys = {"by definition or worked by hand": IMPLEMENTATION, "of networks found by the numbers": FITTED}
    return {why: Counter(v for rule, v in claims if words in rule) for why, words in whys.items()}


def rule_of(topic: str, row: ReproduceRow) -> Rule:
    """Return the rule of a claim."""
    rule = Rule("yes") if isinstance(row.paper, bool) else Rule()
    rules = (rule for name, pattern, rule in RULES if name == topic and fnmatchcase(row.quantity, pattern))
    rule = next(rules, rule)
    if topic.startswith("gsharp-") and topic != "gsharp-figure-6" and not (rule.change or rule.kind == "none"):
        rule = replace(rule, change="batches of the later published code stand in")
    if topic == "market" and rule.kind == "yes" and not (rule.change or IMPLEMENTATION in rule.said):
        rule = replace(rule, change=_THREADS)
    return rule


def judged(topic: str, rows: Sequence[ReproduceRow], stand_in: str | None = None) -> ReproduceClaim:
    """Return the claim whose rows of all seeds are *rows*, with its verdict.

    Parameters
    ----------
    topic
        Name of the topic.
    rows
        The same quantity by seed; at least one.
    stand_in
        Third-party data that was missing, so that nothing is comparable; ``None``: none.
    """
    first, values = rows[0], [row.ours for row in rows]
    yes = [value for value in values if isinstance(value, bool)]
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool) and isfinite(v)]
    ours: bool | float | str | None = values[0]
    yes_pct: float | None = None
    if len(yes) == len(values):
        drawn = [row.held_pct for row in rows if row.held_pct is not None]
        ours, yes_pct = all(yes), fmean(drawn) if drawn else 100.0 * sum(yes) / len(yes)
        numbers = []
    elif len(numbers) == len(values):
        ours = fmean(numbers)
    else:
        numbers = []
        ours = ours if all(value == ours for value in values) else None
    verdict, rule, why = _verdict(topic, first, ours, yes_pct, stand_in)
    return ReproduceClaim(
        quantity=first.quantity, paper=first.paper, ours=ours, unit=first.unit,
        least=min(numbers, default=None), most=max(numbers, default=None),
        sd=stdev(numbers) if len(numbers) > 1 else None, held_pct=yes_pct,
        verdict=verdict, rule=rule, why=why, note=first.note,
    )  # fmt: skip


def _verdict(
    topic: str, row: ReproduceRow, ours: bool | float | str | None, yes_pct: float | None, stand_in: str | None
) -> tuple[Verdict, str, str]:
    """Return the verdict, the rule and what it was applied to."""
    none: Verdict = "not comparable"
    if stand_in is not None:
        return none, "not compared", f"{stand_in} is missing, and was replaced"
    if row.paper is None:
        return none, "not compared", row.note or "the paper prints no value"
    if ours is None:
        return none, "not compared", row.note or "not measured here"
    if row.unit == "s":
        return none, "not compared", row.note if row.note and not row.comparable else "seconds of another machine"
    rule = rule_of(topic, row)
    if rule.kind == "none":
        return none, rule.words, rule.why
    if not row.comparable:
        return none, "not compared", row.note or "the paper does not say how it was measured"
    if isinstance(row.paper, bool) and isinstance(ours, bool):
        yes_pct = 100.0 * ours if yes_pct is None else yes_pct
        verdict = rule.of_yes(yes_pct, stated=ours) if ours or not rule.part else "does not hold"
        if ours and rule.part:
            return none, rule.words, rule.part
        return verdict, rule.words, f"yes for {yes_pct:.0f}% of the {'draws' if topic in _DRAWN else 'seeds'}"
    if isinstance(row.paper, str) or isinstance(ours, str):
        return ("holds" if ours == row.paper else "does not hold"), "holds if it is the same", f"{ours} for {row.paper}"
    off = f"{float(ours) / float(row.paper or 1):.3g} "
    off += "times the paper's value" if row.paper else "instead of 0"
    if rule.kind == "less" and float(ours) < float(row.paper) * (1 - rule.holds):
        off += ": better than printed"
    return rule.of_number(float(row.paper), float(ours)), rule.words, off
