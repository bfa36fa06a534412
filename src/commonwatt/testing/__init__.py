"""Contract tests shipped with the interfaces they hold to account.

- ``engine_contract``: subclass ``EngineContract``, give it a ``lab`` fixture, inherit its tests.
"""
