"""What Prometheus has, by its HTTP API, v1: a demand series (a range query), and values of now (an instant query).

A range query such as ``sum(kube_pod_container_resource_requests{resource="nvidia_com_gpu"})`` must give one series.
Long periods are queried in pieces, as Prometheus answers with at most 11,000 points at once. Steps without a sample are
unknown. Where ``COMMONWATT_PROMETHEUS_TOKEN`` is set it is sent as bearer token. Redirections are not followed: they
would lose the query, and the token is for nobody else.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.model.demand import MOST_DEMAND, DemandSeries
from commonwatt.model.errors import ArgumentError, InputError

__all__ = ["TOKEN_VARIABLE", "query_now", "query_range"]

TOKEN_VARIABLE = "COMMONWATT_PROMETHEUS_TOKEN"  # noqa: S105 - the name of a variable
_MOST_POINTS = 11_000
_MOST_STEPS = 10_000_000


def query_range(
    url: str, query: str, begin_s: float, end_s: float, step_s: float = 60.0, timeout_s: float = 60.0
) -> DemandSeries:
    """Return the values of *query* at every step in ``[begin_s, end_s)``.

    Parameters
    ----------
    url
        Where Prometheus is, such as ``http://localhost:9090``; http or https.
    begin_s, end_s
        Period, s since 1970.

    Raises
    ------
    InputError
        If it does not answer, refuses the query, or answers with no series, several, or negative values.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ArgumentError("an address that begins with http:// or https://", field="url", value=url)
    if not (math.isfinite(step_s) and step_s > 0):
        raise InputError("a number of seconds above 0", field="step_s", value=step_s)
    steps = math.ceil((end_s - begin_s) / step_s - 1e-9) if math.isfinite(end_s - begin_s) else 0
    if not 1 <= steps <= _MOST_STEPS:
        value = f"{begin_s:.15g} to {end_s:.15g}"
        raise InputError(f"a period of 1 to {_MOST_STEPS:,} steps of {step_s:g} s", field="period", value=value)
    values = np.full(steps, np.nan)
    for first in range(0, steps, _MOST_POINTS):
        last = min(first + _MOST_POINTS, steps) - 1
        asked = {"query": query, "start": begin_s + step_s * first, "end": begin_s + step_s * last, "step": step_s}
        _fill(values, _ask(url, "query_range", asked, timeout_s), url, begin_s, step_s)
    if np.isnan(values).all():
        raise ArgumentError("a query with at least one value in the period", field="query", value=query)
    return DemandSeries(begin_s, step_s, values)


def query_now(url: str, query: str, timeout_s: float = 10.0) -> list[tuple[dict[str, str], float]]:
    """Return labels and value of each series that *query* gives now; a value may be NaN or infinite.

    Raises ``InputError`` if Prometheus does not answer, refuses the query, or answers with something else.
    """
    series = []
    for one in _ask(url, "query", {"query": query}, timeout_s):
        try:
            labels, (_, value) = dict(one["metric"]), one["value"]
            series.append(({str(name): str(said) for name, said in labels.items()}, float(value)))
        except (KeyError, TypeError, ValueError):
            expected = "series with labels, and a pair of a time and a number"
            raise InputError(expected, file=url, value=str(one)[:60]) from None
    return series


class _Strict(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects."""

    def redirect_request(self, *_: Any) -> None:  # noqa: ANN401
        """Turn the redirect into an error."""


_KINDS = {"query_range": "matrix", "query": "vector"}


def _ask(url: str, endpoint: str, asked: dict[str, object], timeout_s: float) -> list[Any]:
    where = f"{url.rstrip('/')}/api/v1/{endpoint}"
    request = urllib.request.Request(where, data=urllib.parse.urlencode(asked).encode())  # noqa: S310 - http(s) only
    token = os.environ.get(TOKEN_VARIABLE)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.build_opener(_Strict).open(request, timeout=timeout_s) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        if error.headers.get("Location"):
            expected = "the address at which Prometheus itself answers"
            raise InputError(expected, file=url, value=f"sent on to {error.headers['Location']}") from None
        raise ArgumentError("a query that Prometheus accepts", file=url, field="query", value=_reason(error)) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError("a Prometheus that answers", file=url, value=reason) from None
    try:
        document = json.loads(text)
        data = document["data"]
        kind, result = data["resultType"], data["result"]
    except (ValueError, KeyError, TypeError):
        raise InputError("an answer of Prometheus (JSON with data.result)", file=url, value=text[:60]) from None
    if document.get("status") != "success" or kind != _KINDS[endpoint] or not isinstance(result, list):
        what = "a range" if endpoint == "query_range" else "an instant"
        raise ArgumentError(f"{what} query's answer (a {_KINDS[endpoint]})", file=url, field="query", value=kind)
    return result


def _reason(error: urllib.error.HTTPError) -> str:
    """Return Prometheus' error message, or the status."""
    try:
        said = json.loads(error.read())
        return str(said["error"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"HTTP {error.code} {error.reason}"


def _fill(values: Floats, result: list[Any], url: str, begin_s: float, step_s: float) -> None:
    if len(result) > 1:
        labels = ", ".join(sorted({name for one in result for name in one.get("metric", {})}))
        expected = f"a query for one series, such as sum(...); these differ by {labels or 'nothing'}"
        raise ArgumentError(expected, field="query", value=f"{len(result)} series")
    if not result:
        return
    try:
        points = [(float(time), float(value)) for time, value in result[0]["values"]]
    except (KeyError, TypeError, ValueError):
        raise InputError("pairs of a time and a number", file=url, value=result[0]) from None
    for time_s, gpus in points:
        index = round((time_s - begin_s) / step_s)
        if not 0 <= index < len(values) or abs(begin_s + step_s * index - time_s) > 0.01 * step_s:
            raise InputError(f"times on the grid of {step_s:g} s of the query", file=url, value=time_s)
        if gpus < 0 or gpus > MOST_DEMAND:
            expected = f"a finite demand, 0 or more, at most {MOST_DEMAND:,.0f}"
            raise ArgumentError(expected, file=url, field="query", value=gpus)
        values[index] = gpus
