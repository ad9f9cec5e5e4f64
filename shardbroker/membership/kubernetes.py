"""Discovery by Kubernetes: where etcd is, from the EndpointSlices of a service. One request, with the token of the pod."""

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp

from shardbroker.config.cluster import Kubernetes
from shardbroker.membership.discovery import LOOKUP_S, DiscoveryError

__all__ = ["ACCOUNT", "pods"]

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod has the token of its service account, the issuers of the API server's certificate, and its namespace."""
ANSWER_MAX = 4 << 20
"""Bytes of an answer: a slice has up to 100 endpoints of some hundred bytes each."""
TEXT_MAX = 200


async def pods(settings: Kubernetes) -> list[str]:
    """Returns the hosts of the pods of a service. Raises DiscoveryError."""
    try:
        namespace = settings.namespace or (ACCOUNT / "namespace").read_text().strip()
        token = (ACCOUNT / "token").read_text().strip()  # read each time: it is renewed
        tls = ssl.create_default_context(cafile=ACCOUNT / "ca.crt") if settings.apiserver.startswith("https://") else True
    except (OSError, UnicodeDecodeError) as error:
        raise DiscoveryError(f"cluster.k8s: the service account of the pod cannot be read: {ACCOUNT}: {error}") from None
    query = urlencode({"labelSelector": f"kubernetes.io/service-name={settings.service_name}", "limit": 100})
    url = f"{settings.apiserver.rstrip('/')}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?{query}"
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(LOOKUP_S)) as session,
            session.get(url, headers={"Authorization": f"Bearer {token}"}, ssl=tls, allow_redirects=False) as answer,
        ):
            text = await answer.content.read(ANSWER_MAX)
            while len(text) < ANSWER_MAX and (more := await answer.content.read(ANSWER_MAX - len(text))):
                text += more
            status = answer.status
        found = json.loads(text)
        if status != 200:
            raise DiscoveryError(f"cluster.k8s: {url}: HTTP {status}: {str(found.get('message', ''))[:TEXT_MAX]}")
        return [*dict.fromkeys(_hosts(found, settings, namespace))]
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise DiscoveryError(f"cluster.k8s: {url}: {str(error) or 'no answer in time'}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DiscoveryError(f"cluster.k8s: {url}: HTTP {status}: the answer is no list of EndpointSlices") from None


def _hosts(found: Any, settings: Kubernetes, namespace: str) -> Iterator[str]:
    for piece in found["items"]:
        for endpoint in piece.get("endpoints") or ():
            if settings.address_type == "hostname":
                if hostname := endpoint.get("hostname"):
                    yield f"{hostname}.{settings.service_name}.{namespace}.{settings.suffix}"
                continue
            for address in endpoint["addresses"]:
                if settings.address_type == "ip":
                    yield str(address)
                else:
                    yield f"{str(address).replace('.', '-').replace(':', '-')}.{namespace}.{settings.suffix}"
