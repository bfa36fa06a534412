"""What layers take on arrays of processing elements: cycles, bytes, energy.

- ``Layer``, ``Array``: a layer of a network as seven loops; a sub-accelerator. ``PLATFORMS``: those of the paper.
- ``MODELS``: cost models by name: ``maestro`` (the closed forms of the published table, for comparison), ``shi``,
  ``roofline`` (every byte is moved at least once, and buffers hold what they must).
- ``job_table``: what every layer asks of every sub-accelerator.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
