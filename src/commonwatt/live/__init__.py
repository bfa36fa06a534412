"""The control plane at work: the controller that simulations run, over a real engine and a store.

``open.py`` puts it together from a configuration, ``keeper.py`` keeps it going.
"""
