"""Presentation of results: the HTML report, static figures and the table in the terminal.

- ``html``: ``render`` makes the self-contained ``report.html``.
- ``plots``: static figures (PNG, SVG, PDF) for ``--plot``.
- ``terminal``: one table and one sentence.
- ``comparison``, ``format``: the same numbers as text; savings of the first policy against the others.
- ``timeline``, ``reduction``: records reduced to what can be drawn.
- ``figures``, ``gantt``, ``sections``: parts of the page; ``assets``: skeleton, style, script.
- ``drawing``: parts of the static figures; ``palette``: the colours of both; ``saving``: figures as files.
"""
