"""Showing what a run did: the HTML report, static figures, the table in the terminal.

- ``html``: ``render`` makes the self-contained ``report.html``.
- ``plots``: static figures (PNG, SVG, PDF) for ``--plot``.
- ``terminal``: one table and one sentence.
- ``words``, ``comparison``, ``format``: the same numbers as text; who saved what against whom.
- ``timeline``, ``steps``, ``distribution``, ``lanes``, ``heatmap``: records made small enough to draw.
- ``figures``, ``gantt``, ``sections``, ``panels``, ``tables``: parts of the page; ``assets``: skeleton, style, script.
- ``drawing``: parts of the static figures; ``palette``: the colours of both.
"""
