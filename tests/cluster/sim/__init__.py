"""A simulation of up to 23 nodes of the cluster cores: one seed is one run.

    python -m tests.cluster.sim --seeds 100 --first 1 [--nodes 23] [--steps 400]

In a run, seeded acts follow each other at random intervals: publishes, subscriptions, churn of routes, cuts in one or both
directions, connection resets, kills of processes and of link processes, power cuts, full disks, joins, leaves. Clocks differ by up
to 4 s. Then everything heals, and after a bounded time the invariants are checked (cluster.py).
"""
