"""Keys open what they should; those of a file that would not are refused with what to do."""

from __future__ import annotations

import pytest

from commonwatt.model.errors import InputError
from commonwatt.model.names import is_loopback
from commonwatt.model.timeslice_file import TimesliceConfig
from commonwatt.serving.keys import Keys, presented_key, resolve_keys, with_host


def config(*tenants, **server):
    rows = [
        {"name": f"t{place}", "models": [{"name": "m", "path": "m.onnx"}], **tenant}
        for place, tenant in enumerate(tenants)
    ]
    return TimesliceConfig.model_validate({"device": {"kind": "cpu"}, "tenants": rows, "server": server})


def test_keys_of_a_file_and_of_the_environment():
    given = config({"key": "long-enough"}, {"key_env": "T1"}, operator_key_env="OP", host="0.0.0.0")
    keys = resolve_keys(given, {"T1": "also-long-enough", "OP": "operators-own"})
    assert keys.tenant_of("long-enough") == "t0"
    assert keys.tenant_of("also-long-enough") == "t1"
    assert [keys.tenant_of(key) for key in (None, "", "T1", "operators-own", "long-enough ", "\u00e9\ud800")] == [
        None
    ] * 6
    assert keys.opens_operation("operators-own", "10.0.0.1")
    assert not keys.opens_operation("long-enough", "127.0.0.1")
    assert not keys.opens_operation(None, "127.0.0.1")
    assert "long-enough" not in repr(keys)


def test_a_single_tenant_on_loopback_needs_none():
    keys = resolve_keys(config({}), {})
    assert keys.tenant_of(None) == keys.tenant_of("anything") == "t0"
    assert keys.opens_operation(None, "127.0.0.1")
    assert not keys.opens_operation(None, "10.0.0.1")
    assert not keys.opens_operation(None, None)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (config({}, host="0.0.0.0"), "field 'tenants.t0.key': expected a key for tenant 't0': set key or key_env"),
        (config({}, {}), "field 'tenants.t0.key'"),
        (config({"key": "long-enough"}, {}), "field 'tenants.t1.key'"),
        (config({"key_env": "NONE"}), "'tenants.t0.key_env': got 'NONE', expected an environment variable that is set"),
        (config({"key_env": "SHORT"}), "field 'tenants.t0.key_env': got 'SHORT', expected a variable with 8"),
        (config({"key_env": "ODD"}), "expected a key of printable ASCII"),
        (config({"key": "with space in it"}), "expected a key of printable ASCII"),
        (config({"key": "long-enough"}, {"key_env": "SAME"}), "'tenants.t1.key_env': expected a key that no"),
        (config({"key": "long-enough"}, operator_key="long-enough"), "expected a key that no other"),
        (config({}, operator_key_env="NONE"), "field 'server.operator_key_env': got 'NONE'"),
        (config({}, operator_key="long-enough", operator_key_env="SAME"), "either key or key_env"),
    ],
)  # fmt: skip
def test_files_that_are_refused(given, text):
    environment = {"SHORT": "short", "ODD": "\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9", "SAME": "long-enough"}
    with pytest.raises(InputError) as error:
        resolve_keys(given, environment)
    assert text in str(error.value)
    assert not any(key in str(error.value) for key in ("short", "long-enough", "with space"))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False), (None, False),
        ("localhost.example.org", False),
    ],
)  # fmt: skip
def test_loopback(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("authorization", "api_key", "expected"),
    [
        ("Bearer abc", None, "abc"), ("bearer  abc ", None, "abc"), (None, "abc", "abc"), ("Basic abc", "def", "def"),
        ("Basic abc", None, None), ("Bearer", None, None), ("Bearer ", "abc", "abc"), ("Bearer abc", "def", "abc"),
        (None, " ", None), (None, None, None), (None, "", None),
    ],
)  # fmt: skip
def test_where_a_key_stands(authorization, api_key, expected):
    assert presented_key(authorization, api_key) == expected


def test_keys_made_by_hand():
    keys = Keys.of({"a": "key-of-a"}, None)
    assert (keys.tenant_of("key-of-a"), keys.tenant_of("key-of-b")) == ("a", None)


def test_the_host_may_be_that_of_a_variable_which_is_set():
    given = config({"key": "long-enough"}, host="$POD_IP")
    assert with_host(given, {"POD_IP": "10.1.2.3"}).server.host == "10.1.2.3"
    assert with_host(config({"key": "long-enough"}, host="node-1"), {}).server.host == "node-1"
    with pytest.raises(InputError) as refused:
        with_host(given, {"POD_IP": ""})
    assert (refused.value.field, refused.value.value) == ("server.host", "$POD_IP")
