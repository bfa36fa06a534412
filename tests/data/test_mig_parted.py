"""The file of mig-parted: read, checked, written."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.data.mig_parted import Entry, MigParted, read_mig_parted, text_of, write_mig_parted
from commonwatt.model.errors import InputError

GOOD = """version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  all-enabled:
    - devices: all
      mig-enabled: true
      mig-devices: {}
  mixed:
    - device-filter: "0x233010DE"
      devices: [0, 1]
      mig-enabled: true
      mig-devices:
        "1g.10gb": 2
        "3g.40gb": 1
    - device-filter: ["0x20B010DE", "0x20B110DE"]
      devices: all
      mig-enabled: false
      mig-devices: {}
"""


def test_what_is_read_is_what_stands_there(write):
    found = read_mig_parted(write("c.yaml", GOOD))
    first, second = found.configs["mixed"]
    assert first == Entry((0, 1), enabled=True, instances={"1g.10gb": 2, "3g.40gb": 1}, device_filter=("0x233010DE",))
    assert (second.devices, second.enabled, second.device_filter) == ("all", False, ("0x20B010DE", "0x20B110DE"))
    assert found.instances("all-disabled", 3) == {}
    with pytest.raises(InputError, match="one of all-disabled, all-enabled, mixed"):
        found.instances("none", 0)


def test_a_file_comes_back_as_it_went(write, tmp_path):
    found = read_mig_parted(write("c.yaml", GOOD))
    write_mig_parted(found, tmp_path / "again.yaml")
    assert read_mig_parted(tmp_path / "again.yaml") == found
    assert yaml.safe_load(text_of(found))["version"] == "v1"


ENTRIES = st.builds(
    lambda devices, counts, on: Entry(devices, enabled=on, instances=counts if on else {}),
    st.one_of(st.just("all"), st.lists(st.integers(0, 15), max_size=4).map(tuple)),
    st.dictionaries(st.sampled_from(["1g.10gb", "1g.10gb+me", "1g.20gb", "7g.80gb"]), st.integers(1, 7)),
    st.booleans(),
)


@pytest.mark.slow
@given(
    st.dictionaries(st.text(min_size=1, max_size=12), st.lists(ENTRIES, min_size=1, max_size=3).map(tuple), min_size=1)
)
def test_anything_written_can_be_read(tmp_path_factory, configs):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    write_mig_parted(MigParted(configs), path)
    assert read_mig_parted(path) == MigParted(configs)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("v1", "v2", "field 'version': got 'v2', expected v1"),
        ("[0, 1]", "some", "mig-configs.mixed.0.devices': got 'some', expected all or a list"),
        ("[0, 1]", "[-1]", "mig-configs.mixed.0.devices"),
        ('"1g.10gb": 2', '"1g.10gb": two', "mig-configs.mixed.0.mig-devices.1g.10gb': got 'two'"),
        ("mig-enabled: true", "mig-enabled: 1", "mig-enabled': got '1', expected true or false"),
        ("mig-devices: {}", "mig-device: {}", "mig-configs.all-enabled.0.mig-device"),
        ('"0x233010DE"', "5", "device-filter': got '5'"),
        ("mig-configs", "configs", "one of the fields mig-configs, version"),
        ("all-enabled:", "all-disabled:", "each key once"),
        ("version: v1", "version: [", "valid YAML"),
    ],
)
def test_what_is_wrong_is_named(old, new, said, write):
    path = write("c.yaml", GOOD.replace(old, new, 1))
    with pytest.raises(InputError) as refused:
        read_mig_parted(path)
    assert said in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    "name", ["0E0", "1e5", ".5", "-1", "+2", "007", "1.2.3", "null", "true", "~", "yes", "a: b", "# x"]
)
def test_names_that_look_like_something_else_stay_text(name, tmp_path):
    document = MigParted({name: (Entry("all", enabled=False, instances={}),)})
    write_mig_parted(document, tmp_path / "m.yaml")
    assert read_mig_parted(tmp_path / "m.yaml") == document
