"""What a layer costs on an array of processing elements: cycles, bytes, energy.

- ``loops``: layers as columns of numbers; ``cost``: arrays, costs, and the interface of a cost model.
- ``maestro``: the closed forms of the published table, kept for comparison; ``accesses``: its buffer accesses.
- ``roofline``: every byte moved at least once, buffers that hold what they must; ``tiling``: its choice of tiles.
- ``energy``: what cycles and accesses come to; ``flexible``: the shape of an array chosen for each layer.
- ``models``: all cost models by name.
"""
