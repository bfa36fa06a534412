"""Showing what a run did: the HTML report, static figures, the table in the terminal.

- ``html``: ``render`` makes the self-contained ``report.html``.
- ``plots``: static figures (PNG, SVG, PDF) for ``--plot``.
- ``terminal``: one table and one sentence.
- ``words``, ``comparison``, ``format``: the same numbers as text; who saved what against whom.
- ``timeline``, ``steps``, ``distribution``, ``lanes``, ``heatmap``: records made small enough to draw.
- ``figures``, ``sections``, ``tables``: the parts of the page; ``assets``: its skeleton, style and script.
"""
