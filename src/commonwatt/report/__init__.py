"""Presentation of results: the HTML report, static figures and the table in the terminal.

- ``html``: ``render`` makes the self-contained ``report.html``.
- ``plots``, ``decision_plots``, ``forecast_plots``: static figures (PNG, SVG, PDF) for ``--plot``.
- ``text``: a table for the terminal, and the first policy against the others in words; ``format``: numbers as text.
- ``timeline``, ``reduction``: records reduced to what can be drawn.
- ``figures``, ``gantt``, ``sections``: parts of the page; ``assets``: skeleton, style, script.
- ``drawing``: parts of the static figures; ``palette``: the colours of both; ``saving``: figures as files.
"""
