"""Generated workloads, from a seed.

- ``week``: a week similar to Philly; ``week_fit``: how its figures were fitted.
- ``andreas``: the generator of ANDREAS section V-B; ``families``: its models and their run times.
- ``armida``: the validation of ANDREAS section V-C: Tables II and V.
"""
