"""Membership kept by etcd."""
