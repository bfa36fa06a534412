"""Weights of a configuration and weights people set."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

from commonwatt.model.errors import InputError
from commonwatt.store.settings import enter_tenants


def test_a_weight_of_the_configuration_counts_when_it_is_new_or_another(store, database):
    enter_tenants(database, {"bob": 2.0, "eve": 1.0}, 5.0)
    assert store.tenants() == {"ada": 1.0, "bob": 2.0, "eve": 1.0}
    store.add_tenant("bob", 7.0, 6.0)  # somebody asks for it
    enter_tenants(database, {"bob": 2.0, "eve": 1.0}, 7.0)
    assert store.tenants()["bob"] == 7.0
    enter_tenants(database, {"bob": 3.0, "eve": 1.0}, 8.0)
    assert store.tenants() == {"ada": 1.0, "bob": 3.0, "eve": 1.0}
    enter_tenants(database, {"eve": 1.0}, 9.0)  # left out
    store.add_tenant("bob", 7.0, 10.0)
    enter_tenants(database, {"bob": 3.0, "eve": 1.0}, 11.0)
    assert store.tenants()["bob"] == 7.0


def test_what_somebody_set_before_the_configuration_named_it_stays(store, database):
    enter_tenants(database, {"ada": 5.0}, 1.0)
    assert store.tenants() == {"ada": 1.0}
    enter_tenants(database, {"ada": 6.0}, 2.0)
    assert store.tenants() == {"ada": 6.0}


def test_new_tenants_only(store, database):
    enter_tenants(database, {"ada": 5.0, "bob": 2.0}, 1.0, only_new=True)
    assert store.tenants() == {"ada": 1.0, "bob": 2.0}
    enter_tenants(database, {"ada": 5.0, "bob": 3.0}, 2.0)
    assert store.tenants() == {"ada": 1.0, "bob": 3.0}


def test_names_that_cannot_be_stored(store, database):
    with pytest.raises(InputError, match=r"'tenants\.name'"):
        enter_tenants(database, {"x" * 200: 1.0}, 1.0)
    assert store.tenants() == {"ada": 1.0}
