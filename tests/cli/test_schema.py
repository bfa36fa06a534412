"""``commonwatt schema``: what it prints can be relied on by other programs."""

from __future__ import annotations

import csv
import io
import json

import pytest

from commonwatt.model.schemas import SCHEMAS
from tests.cli.console import problem, run, scenario, write


def references(part: object) -> list[str]:
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return own + [r for value in part.values() for r in references(value)]
    return [r for value in part for r in references(value)] if isinstance(part, list) else []


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_whole(name):
    document = run("schema", name).document
    assert document["type"] == "object"
    assert document["properties"].keys() == SCHEMAS[name].model_fields.keys()
    for reference in references(document):
        at = document
        for step in reference.removeprefix("#/").split("/"):
            at = at[step]
    parts = [document, *document.get("$defs", {}).values()]
    for part in parts:
        for field, schema in part.get("properties", {}).items():
            assert schema.get("description"), f"{name}: {field}"
            assert schema.get("unit"), f"{name}: {field}"


def test_names():
    assert run("schema").out.split() == list(SCHEMAS)
    assert run("schema", "--json").document == {"schemas": list(SCHEMAS)}


@pytest.mark.slow
def test_results_have_the_fields_their_schema_requires(tmp_path):
    simulated = run("simulate", write(tmp_path / "s.yaml", scenario()), "--json", "--jobs", 1).document
    placed = run("place", write(tmp_path / "p.yaml", problem()), "--json").document
    for name, document in (("simulation-result", simulated), ("place-result", placed)):
        schema = run("schema", name).document
        assert set(schema["required"]) <= document.keys() <= schema["properties"].keys()


def test_the_dictionary_names_every_field_once():
    rows = list(csv.DictReader(io.StringIO(run("schema", "--dictionary").out)))
    names = [(row["model"], row["name"]) for row in rows]
    assert len(set(names)) == len(names)
    assert {("Scenario", "interval_s"), ("PlaceFile", "jobs"), ("PolicyResult", "energy_kwh")} <= set(names)
    interval = next(row for row in rows if (row["model"], row["name"]) == ("Scenario", "interval_s"))
    assert (interval["type"], interval["unit"], interval["default"]) == ("number", "s", "300.0")
    assert all(row["meaning"] and row["unit"] for row in rows)
    assert run("schema", "--dictionary", "--json").document["fields"] == rows


def test_the_schema_of_a_file_and_the_reader_agree_on_unknown_fields():
    assert run("schema", "scenario").document["additionalProperties"] is False
    assert json.dumps(run("schema", "place").document).count('"additionalProperties": false') >= 4
