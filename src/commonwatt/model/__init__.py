"""The shared vocabulary, known to every package and knowing none of them.

- ``errors``: the one error tree.
- ``fields``: how a field of a file declares its unit and meaning (the data dictionary).
- ``units``: constants of conversion.
- ``electricity``: price and carbon intensity over time, PUE; ``Tariff`` integrates them.
- ``nodes``: nodes, GPU types, power and power states; ``Cluster`` is the compiled form.
- ``jobs``: training jobs and tenants; ``JobArrays`` is the compiled form.
- ``accounting``: QOS and associations.
- ``place_file``, ``scenario``: the files a user writes.
- ``results``: the documents commands answer with.
- ``schemas``: every file model by name; JSON Schema and the data dictionary come from here.
"""
