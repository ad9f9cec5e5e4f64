"""Clusters of real brokers on this machine."""
