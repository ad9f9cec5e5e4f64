"""Rows in tables of TimescaleDB, which is PostgreSQL: hypertables are written like tables."""

from shardbroker.flows.drivers.pgsql import connect, make

__all__ = ["connect", "make"]
