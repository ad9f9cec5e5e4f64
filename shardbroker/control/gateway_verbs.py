"""Verbs of gateways: other protocols than MQTT."""

from shardbroker.control.rest import Rest
from shardbroker.control.verbs import Page, Params, Verb, argument, table

__all__ = ["EnableGateway", "GatewayClients", "OneGateway"]


class OneGateway(Params):
    """A gateway by its name."""

    name: str = argument("Name of the gateway, such as stomp.")


class EnableGateway(OneGateway):
    """A gateway, and whether it runs."""

    enable: bool = argument("true or false.")


class GatewayClients(Page):
    """A page of the clients of a gateway."""

    name: str = argument("Name of the gateway, such as stomp.")


TIMES = ("created_at", "connected_at", "disconnected_at")

table(
    Verb("gateways list", "Gateways, with their state and their listeners.",
         columns=("name", "status", "listeners", "current_connections", "max_connections"),
         rest=(Rest("GET /gateways", "Gateways", "list_gateways", "rows", times=("started_at",)),)),
    Verb("gateways show", "Settings, listeners and counts of a gateway.", OneGateway,
         rest=(Rest("GET /gateways/{name}", "Gateways", "show_gateway", times=("started_at",)),)),
    Verb("gateways enable", "Starts or stops a gateway, and keeps that as its setting.", EnableGateway, changes=True,
         rest=(Rest("PUT /gateways/{name}/enable/{enable}", "Gateways", "enable_gateway", "nothing"),)),
    Verb("gateways clients", "Clients of a gateway, with and without a connection.", GatewayClients,
         columns=("clientid", "username", "conn_state", "ip_address", "listener", "worker"),
         rest=(Rest("GET /gateways/{name}/clients", "Gateways", "list_gateway_clients", "page", times=TIMES),)),
)  # fmt: skip
