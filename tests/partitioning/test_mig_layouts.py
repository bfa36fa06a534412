"""Layouts of one GPU, against what people know of them."""

import json
from collections import Counter
from itertools import combinations

import pytest

from commonwatt.data import third_party
from commonwatt.model.errors import InputError
from commonwatt.partitioning.mig._layouts import (
    GPUS,
    PLAIN,
    Placed,
    check_layout,
    count_vectors,
    find_layout,
    gpu_type,
    layouts,
    parse_layout,
)

H100 = gpu_type("H100-80GB")


def market_data(name):
    """A file of the market data, which lies beside the folder of traces."""
    traces = third_party.folder()
    if traces is None or not (traces.parent / "market" / name).is_file():
        pytest.skip(f"no market data beside the traces: set {third_party.VARIABLE}")
    return traces.parent / "market" / name


@pytest.mark.parametrize("name", GPUS)
def test_there_are_19_layouts_of_14_shapes(name):
    assert (len(layouts(name)), len(count_vectors(name))) == (19, 14)


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("keys", [PLAIN, ("1g", "1g.x2", "2g", "3g", "4g", "7g")])
def test_layouts_are_those_a_search_over_all_subsets_finds(name, keys):
    gpu = gpu_type(name)
    places = [Placed(start, key) for key in keys for start in gpu.profile(key).starts]

    def legal(some):
        try:
            check_layout(gpu, some)
        except InputError:
            return False
        return True

    found, grown = [], [()]
    while grown:
        wider = [(*some, p) for some in grown for p in places if (not some or p > max(some)) and legal((*some, p))]
        found += [some for some in grown if not any(p not in some and legal((*some, p)) for p in places)]
        grown = wider
    assert sorted(map(sorted, found)) == sorted(map(sorted, layouts(name, keys)))


@pytest.mark.data
def test_layouts_are_those_of_the_data():
    known = json.loads(market_data("mig_layouts.json").read_text())
    theirs = {
        tuple(sorted((i["start_memory_slice"], i["profile"]) for i in known_one["instances"]))
        for known_one in known["layouts"]
    }
    for name in known["gpus"]:
        assert {tuple(sorted((p.start, p.profile) for p in one)) for one in layouts(name)} == theirs
        for key, facts in known["gpus"][name]["profiles"].items():
            profile = gpu_type(name).profile(key)
            mine = (profile.name, profile.memory_gb, profile.sms)
            assert mine == (facts["name"], facts["memory_gb_nominal"], facts["sms"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["3g@0", "2g@2"], "slice 2 is taken by 3g@0"),
        (["4g@4"], "4g.40gb to begin at memory slice 0 of an H100-80GB"),
        (["1g@7"], "to begin at memory slice 0, 1"),
        (["1g.10gb@0", "3g.40gb@4", "1g@0"], "slice 0 is taken by 1g@0"),
        (["1g.10gb+me@0", "1g+me@1"], "at most 1 instances 1g.10gb+me"),
        (["5g@0"], "one of the profiles of an H100-80GB"),
        (["3g@0", "3g"], "PROFILE@SLICE"),
        (["4g", "4g"], "profiles that fit on one H100-80GB together"),
        (["7g", "1g"], "profiles that fit"),
    ],
)
def test_an_illegal_layout_is_refused_with_the_slice(words, said):
    with pytest.raises(InputError) as refused:
        parse_layout(H100, words, "gpus.g.present")
    assert said in str(refused.value)
    assert "gpus.g.present" in str(refused.value)


def test_counts_find_a_place_if_there_is_one():
    assert find_layout(H100, {"1g": 4, "3g": 1}) == tuple(
        sorted([*(Placed(i, "1g") for i in range(4)), Placed(4, "3g")])
    )
    assert find_layout(H100, {"1g": 100}) is None
    for layout in layouts("H100-80GB"):
        for size in range(len(layout) + 1):
            for part in list(combinations(layout, size))[:20]:
                counts = Counter(p.profile for p in part)
                found = find_layout(H100, counts)
                assert Counter(p.profile for p in check_layout(H100, found)) == counts
