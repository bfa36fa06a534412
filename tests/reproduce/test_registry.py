import re
from pathlib import Path

import pytest
import yaml

from commonwatt.model.errors import InputError
from commonwatt.model.results import ReproduceRow
from commonwatt.reproduce import registry
from commonwatt.reproduce.topic import Topic, TopicAnswer, TopicRequest


def test_topics_are_told_apart():
    names = [topic.name for topic in registry.topics()]
    assert names[:4] == ["andreas-scenario-1", "andreas-scenario-2", "andreas-table-3", "andreas-armida"]
    assert len(set(names)) == len(names)
    for topic in registry.topics():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", topic.name)
        assert topic.title
        assert topic.paper
        assert topic.compares
        assert registry.find(topic.name) is not None


FIGURES = {
    "ANDREAS": ("Fig. 1..5", "Table I II III IV V"),
    "CUFF": ("Fig. 1..5", "Table 1..4"),
    "ETF": ("Fig. 1..11",),
    "G#": ("Fig. 1..14", "Table 1..7"),
    "Thesis on sharing hardware accelerators by a Fisher market": (
        "Fig. 2.1 3.1 3.2 4.1 4.2 5.1 5.2 5.3 5.4 5.5 5.6 5.7 5.8 5.9 5.10", "Table 4.1 4.2 5.1 5.2 5.3 5.4 5.5 5.6"),
}  # fmt: skip
"""All that the papers number."""


def test_every_figure_and_table_has_claims_or_a_reason_why_not():
    text = Path(registry.__file__).with_name("papers").joinpath("left_out.yaml").read_text(encoding="utf-8")
    listed = yaml.safe_load(text)
    assert set(listed) == set(FIGURES) == set(registry.left_out())
    names = {topic.name for topic in registry.of_papers()}
    for paper, kinds in FIGURES.items():
        every = []
        for kind in kinds:
            word, *numbers = kind.split()
            if ".." in numbers[0]:
                numbers = [str(n) for n in range(1, int(numbers[0].split("..")[1]) + 1)]
            every += [f"{word} {number}" for number in numbers]
        rows, without = listed[paper]["with_rows"], listed[paper]["without"]
        assert sorted([*rows, *without]) == sorted(every), paper
        assert set(rows.values()) <= names
        assert all(reason for reason in without.values())
        assert len(registry.left_out()[paper]) == len(without) + len(listed[paper]["parts"])


def test_unknown_topic():
    with pytest.raises(InputError, match=r"field 'NAME': got 'x', expected one of andreas-scenario-1, "):
        registry.find("x")


def test_a_new_topic_is_run():
    heard = []

    def run(request: TopicRequest) -> TopicAnswer:
        with request.progress(1, 1.0) as bar:
            bar.at("x", 0.5)
            bar.done()
        heard.append(request)
        row = ReproduceRow(quantity="answer", paper=42.0, ours=None, unit="-", comparable=True)
        return TopicAnswer(seeds=(request.seed,), digests=("a", "b"), rows=(row,), notes=("n",))

    request = TopicRequest(extent="quick", seed=7)
    result, answer = registry.reproduce(Topic("a-b", "t", "p", "c", run), request)
    assert heard == [request]
    assert answer.draw is None
    assert (result.name, result.seed, result.seeds, result.extent) == ("a-b", 7, (7,), "quick")
    assert result.rows[0].paper == 42.0
    assert result.rows[0].ours is None
    assert len(result.input_digest) == 64


@pytest.mark.parametrize("value", [True, 3.5, "text", None])
def test_values_keep_their_type(value):
    row = ReproduceRow(quantity="x", paper=value, ours=value, unit="-", comparable=False)
    again = ReproduceRow.model_validate_json(row.model_dump_json())
    assert again == row
    assert type(again.paper) is type(value)
