"""What holds of every decision, whichever solver takes it: reservations, pinned jobs, an end to waiting beside room."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
