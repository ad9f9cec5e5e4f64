"""Journals: what happened on a worker, in order, on disk."""
