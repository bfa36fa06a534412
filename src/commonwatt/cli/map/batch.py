"""``commonwatt map batch``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.map.layer_rows import digest_of, rows_of, tell_layers
from commonwatt.cli.output import json_option, print_json, say, seed_option

if TYPE_CHECKING:
    from commonwatt.data.layer_batches import BatchClass

__all__ = ["batch"]

_CLASSES = ("vision", "lang", "recom", "mix", "random")


@click.command()
@click.option("--class", "batch_class", type=click.Choice(_CLASSES), required=True, help="Which networks to draw from.")
@click.option("--jobs", type=click.IntRange(1, 100_000), default=100, show_default=True, help="How many layers.")
@click.option("--products", is_flag=True, help="Draw from products of activations too (attention, interactions).")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the batch as CSV, for jobs.")
@seed_option
@json_option
def batch(batch_class: BatchClass, *, jobs: int, products: bool, out: Path | None, seed: int, as_json: bool) -> None:
    """Draw a batch of layers from the networks of a class, or from all: each layer with the same chance.

    \b
    Examples:
      commonwatt map batch --class mix --jobs 100 --seed 0 --out batch.csv
      commonwatt map batch --class vision --json
    """
    from collections import Counter
    from dataclasses import replace

    from commonwatt import __version__
    from commonwatt.data.layer_batches import sample_batch
    from commonwatt.model.map_results import MapBatchResult

    drawn = sample_batch(batch_class, jobs, seed, products=products)
    if out is not None:
        from commonwatt.data.layer_files import write_layers

        write_layers(out, drawn)
        say(f"written: {out}")
    result = MapBatchResult(
        version=__version__,
        seed=seed,
        input_digest=digest_of((batch_class, jobs, products)),
        batch_class=batch_class,
        distinct=len({replace(layer, name="", model="", task=None) for layer in drawn}),
        macs=sum(layer.macs for layer in drawn),
        models=dict(Counter(layer.model for layer in drawn if layer.model).most_common()),
        layers=rows_of(drawn),
    )
    if as_json:
        print_json(result)
        return
    title = f"{batch_class}, seed {seed}: {jobs} layers, {result.distinct} distinct, {result.macs:,} MACs"
    tell_layers(result.layers, title)
