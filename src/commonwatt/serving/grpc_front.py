"""The Open Inference Protocol v2 over gRPC."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from commonwatt.data.certificates import PemFiles
from commonwatt.devices.base import Tensor
from commonwatt.serving import Foreign, import_extra
from commonwatt.serving.backend import ModelDescription
from commonwatt.serving.frontend import Front
from commonwatt.serving.keys import presented_key
from commonwatt.serving.rejections import Refusal, RequestError, refusal_of
from commonwatt.serving.tensors import (
    CONTENTS,
    Given,
    TensorError,
    checked_datatype,
    checked_inputs,
    checked_outputs,
    checked_shape,
    datatype_of,
    from_raw,
    from_typed,
    shown_name,
    to_raw,
)

__all__ = ["credentials", "grpc_server"]


def grpc_server(front: Front, largest: int) -> Foreign:
    """Return a gRPC server without a port; it refuses messages of more than *largest* bytes."""
    messages = import_extra("tritonclient.grpc.service_pb2")
    services = import_extra("tritonclient.grpc.service_pb2_grpc")
    aio, grpc = import_extra("grpc.aio"), import_extra("grpc")
    options = [
        ("grpc.max_receive_message_length", largest),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),  # a port in use is an error
    ]
    server = aio.server(options=options)
    servicer = _Servicer(front, messages, grpc.StatusCode)
    services.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    return server


def credentials(pem: Callable[[], PemFiles]) -> Foreign:
    """Return credentials of a gRPC server: each new connection gets the certificate that *pem* returns then."""
    grpc, now = import_extra("grpc"), pem()

    def configuration(files: PemFiles) -> Foreign:
        return grpc.ssl_server_certificate_configuration([(files.key, files.certificate)], files.client_ca)

    def newest() -> Foreign:
        nonlocal now
        files = pem()
        if files is now:
            return None  # as it was
        now = files
        return configuration(files)

    return grpc.dynamic_ssl_server_credentials(
        configuration(now), newest, require_client_authentication=now.client_ca is not None
    )


class _Servicer:
    """The protocol's calls by name; any other call is refused with a message."""

    def __init__(self, front: Front, messages: Foreign, codes: Foreign) -> None:
        self._front, self._messages, self._codes = front, messages, codes
        self._json = import_extra("google.protobuf.json_format")

    def __getattr__(self, name: str) -> Callable[[Any, Any], Awaitable[None]]:
        if not name[0].isupper():
            raise AttributeError(name)

        async def refuse(_request: Foreign, context: Foreign) -> None:
            await context.abort(self._codes.UNIMPLEMENTED, f"{name} is not supported by this server")

        return refuse

    async def ServerLive(self, _request: Foreign, _context: Foreign) -> Foreign:  # noqa: N802
        return self._messages.ServerLiveResponse(live=True)

    async def ServerReady(self, _request: Foreign, _context: Foreign) -> Foreign:  # noqa: N802
        return self._messages.ServerReadyResponse(ready=self._front.ready())

    async def ServerMetadata(self, _request: Foreign, _context: Foreign) -> Foreign:  # noqa: N802
        return self._messages.ServerMetadataResponse(**self._front.server())

    async def ModelReady(self, request: Foreign, context: Foreign) -> Foreign:  # noqa: N802
        return await self._answer(self._model_ready, request, context)

    async def ModelMetadata(self, request: Foreign, context: Foreign) -> Foreign:  # noqa: N802
        return await self._answer(self._metadata, request, context)

    async def ModelInfer(self, request: Foreign, context: Foreign) -> Foreign:  # noqa: N802
        return await self._answer(self._infer, request, context)

    async def ModelConfig(self, request: Foreign, context: Foreign) -> Foreign:  # noqa: N802
        return await self._answer(self._config, request, context)

    async def ModelStatistics(self, request: Foreign, context: Foreign) -> Foreign:  # noqa: N802
        return await self._answer(self._statistics, request, context)

    async def RepositoryIndex(self, request: Foreign, context: Foreign) -> Foreign:  # noqa: N802
        return await self._answer(self._index, request, context)

    async def RepositoryModelLoad(self, request: Foreign, context: Foreign) -> Foreign:  # noqa: N802
        return await self._answer(self._load, request, context)

    async def RepositoryModelUnload(self, request: Foreign, context: Foreign) -> Foreign:  # noqa: N802
        return await self._answer(self._unload, request, context)

    async def _answer(self, work: Callable[[str, Any], Awaitable[Any]], request: Foreign, context: Foreign) -> Foreign:
        """Authenticate the tenant and do *work*; errors become statuses."""
        try:
            return await work(self._front.tenant(_key(context)), request)
        except Exception as error:
            refusal = refusal_of(error)
            self._front.log(refusal, error, f"gRPC {type(request).__name__}")
        await self._abort(refusal, context)
        return None

    async def _abort(self, refusal: Refusal, context: Foreign) -> None:
        if refusal.retry_after_s is not None:
            context.set_trailing_metadata((("retry-after", str(refusal.retry_after_s)),))
        await context.abort(getattr(self._codes, refusal.code), refusal.text)

    async def _model_ready(self, tenant: str, request: Foreign) -> Foreign:
        model = self._front.model(tenant, request.name, request.version)
        return self._messages.ModelReadyResponse(ready=model.ready)

    async def _metadata(self, tenant: str, request: Foreign) -> Foreign:
        model, versions = self._front.metadata(tenant, request.name, request.version)
        response = self._messages.ModelMetadataResponse(name=model.name, versions=versions, platform=model.platform)
        for rows, specs in ((response.inputs, model.inputs), (response.outputs, model.outputs)):
            for spec in specs:
                rows.add(name=spec.name, datatype=spec.datatype, shape=spec.shape)
        return response

    async def _config(self, tenant: str, request: Foreign) -> Foreign:
        document = {"config": self._front.model_config(tenant, request.name, request.version)}
        return self._json.ParseDict(document, self._messages.ModelConfigResponse())

    async def _statistics(self, tenant: str, request: Foreign) -> Foreign:
        document = self._front.model_stats(tenant, request.name, request.version)
        return self._json.ParseDict(document, self._messages.ModelStatisticsResponse())

    async def _infer(self, tenant: str, request: Foreign) -> Foreign:
        model = self._front.ready_model(tenant, request.model_name, request.model_version)
        with self._front.accepted():
            inputs = checked_inputs(model, _given(request, f"model {shown_name(model.name)}"))
            wanted_outputs = _wanted(request, model)
            outputs = await self._front.run(self._front.backend.infer(tenant, model.key, inputs))
            names = wanted_outputs or list(outputs)
            return self._response(request, model, {name: outputs[name] for name in names})

    def _response(self, request: Foreign, model: ModelDescription, outputs: dict[str, Tensor]) -> Foreign:
        response = self._messages.ModelInferResponse(
            model_name=model.name, model_version=str(model.version), id=request.id
        )
        for name, tensor in outputs.items():
            response.outputs.add(name=name, datatype=datatype_of(tensor), shape=tensor.shape)
            response.raw_output_contents.append(bytes(to_raw(tensor)))
        return response

    async def _index(self, tenant: str, request: Foreign) -> Foreign:
        response = self._messages.RepositoryIndexResponse()
        for model in self._front.backend.models(tenant):
            if model.ready or not request.ready:
                state = "READY" if model.ready else "UNAVAILABLE"
                response.models.add(name=model.name, version=str(model.version), state=state, reason=model.reason)
        return response

    async def _load(self, tenant: str, request: Foreign) -> Foreign:
        self._front.versions(tenant, request.model_name)
        if request.parameters:
            raise RequestError("got parameters, expected none: the server's file says how a model is loaded")
        with self._front.accepted():
            await self._front.run(self._front.load(tenant, request.model_name))
        return self._messages.RepositoryModelLoadResponse()

    async def _unload(self, tenant: str, request: Foreign) -> Foreign:
        self._front.versions(tenant, request.model_name)
        with self._front.accepted():
            await self._front.run(self._front.unload(tenant, request.model_name))
        return self._messages.RepositoryModelUnloadResponse()


def _key(context: Foreign) -> str | None:
    metadata = {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}
    return presented_key(metadata.get("authorization"), metadata.get("x-api-key"))


def _wanted(request: Foreign, model: ModelDescription) -> list[str]:
    names = [output.name for output in request.outputs]
    checked_outputs(model, names)
    for output in request.outputs:
        _check_parameters(output, f"model {shown_name(model.name)}, output {shown_name(output.name)}")
    return names


def _check_parameters(tensor: Foreign, where: str) -> None:
    for name in ("shared_memory_region", "classification"):
        if name in tensor.parameters:
            raise RequestError(f"{where}: got parameter {name!r}, expected none, as it is not supported")


def _given(request: Foreign, model: str) -> list[Given]:
    """Return the inputs of *request*, either all raw or all typed."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise RequestError(
            f"{model}: got {len(raw)} raw_input_contents for {len(request.inputs)} inputs, expected as many"
        )
    given = []
    for place, tensor in enumerate(request.inputs):
        where = f"{model}, input {shown_name(tensor.name)}"
        _check_parameters(tensor, where)
        try:
            datatype = checked_datatype(tensor.datatype)
            shape = checked_shape(list(tensor.shape), datatype)
        except TensorError as error:
            raise RequestError(f"{where}: {error}") from None
        if raw and tensor.HasField("contents"):
            raise RequestError(f"{where}: got both contents and raw_input_contents, expected one of them")
        decode = partial(from_raw, raw[place], datatype, shape) if raw else partial(_typed, tensor, datatype, shape)
        given.append(Given(tensor.name, datatype, shape, decode))
    return given


def _typed(tensor: Foreign, datatype: str, shape: tuple[int, ...]) -> Tensor:
    wanted_field = CONTENTS.get(datatype)
    if wanted_field is None:
        raise TensorError(f"got no raw_input_contents, expected them, as there are no typed contents for {datatype}")
    for field, _ in tensor.contents.ListFields():
        if field.name != wanted_field:
            raise TensorError(f"got {field.name}, expected {wanted_field} for {datatype}")
    return from_typed(getattr(tensor.contents, wanted_field), datatype, shape)
