"""Container images: a command of the site's runtime around a job's own command.

A template is a list of arguments, no shell reads it. ``{command}`` stands alone and becomes the arguments of the job's
command; ``{image}``, ``{folder}`` (the job's working directory), ``{snapshots}`` (where it keeps them) and ``{own}``
(where its progress file is) may be parts of an argument::

    apptainer exec --nv --pwd {folder} --bind {own} --bind {snapshots} {image} {command}
    srun --export=ALL --container-image={image} --container-mounts={own},{snapshots} {command}
    docker run --rm --gpus all --env CUDA_VISIBLE_DEVICES --volume {own}:{own} {image} {command}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from commonwatt.engines.work import Work
from commonwatt.model.errors import EngineError, InputError
from commonwatt.model.job_file import check_image

__all__ = ["Images"]

_PLACE = re.compile(r"\{(\w*)\}")
_KNOWN = frozenset({"image", "command", "folder", "snapshots", "own"})


class Images:
    """How this site runs a job in an image.

    Parameters
    ----------
    template
        Arguments of the runtime, with places as above; none if jobs cannot name images here.

    Raises
    ------
    InputError
        For a template without an ``{image}`` or a ``{command}`` that stands alone, or with a place it does not know.
    """

    def __init__(self, template: Sequence[str] = ()) -> None:
        self._template = tuple(template)
        if not self._template:
            return
        for argument in self._template:
            for place in _PLACE.findall(argument):
                if place not in _KNOWN:
                    raise InputError(f"one of {{{'}, {'.join(sorted(_KNOWN))}}}", field="images", value=argument)
        joined = "\0".join(self._template)
        if "{image}" not in joined or self._template.count("{command}") != 1 or joined.count("{command}") != 1:
            expected = "arguments with {image} in one and {command} as one of its own"
            raise InputError(expected, field="images", value=" ".join(self._template))
        if _PLACE.search(self._template[0]):
            raise InputError("a program first", field="images", value=self._template[0])

    def command(self, work: Work, places: Mapping[str, str]) -> tuple[str, ...]:
        """Return the arguments that run *work*; *places* says where ``snapshots`` and ``own`` are.

        Raises ``EngineError`` if it names an image and this site runs none, or one that cannot be a name.
        """
        if work.image is None:
            return work.command
        if not self._template:
            msg = f"image {work.image}: this engine has no command that runs images"
            raise EngineError(msg)
        try:
            values = {**places, "folder": str(work.folder), "image": check_image(work.image)}
        except InputError as error:
            raise EngineError(str(error)) from error
        arguments: list[str] = []
        for argument in self._template:
            if argument == "{command}":
                arguments += work.command
            else:
                arguments.append(_PLACE.sub(lambda place: values[place[1]], argument))
        return tuple(arguments)
