"""Models of files and results."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from commonwatt.model.fields import FileModel, quantity


def test_threads_that_read_the_first_file_of_a_kind_at_once_all_can():
    """Schemas are built when first used."""
    for _ in range(20):

        class Part(FileModel):
            x: float = quantity("x")

        class Whole(Part):
            y: float = quantity("y")

        begin = Barrier(8)

        def read(k: int, kind: type[FileModel] = Whole, begin: Barrier = begin) -> FileModel:
            begin.wait()
            return kind.model_validate({"x": k, "y": 1})

        with ThreadPoolExecutor(8) as pool:
            assert [one.model_dump() for one in pool.map(read, range(8))] == [{"x": k, "y": 1} for k in range(8)]
