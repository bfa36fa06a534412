"""When to start what can wait, where the price of energy or its carbon intensity changes."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
