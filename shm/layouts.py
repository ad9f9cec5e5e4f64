"""Versions of what processes of one broker share in memory. A number is raised with each change that the code before cannot read.

`ctl upgrade` compares them: with another layout the broker has to be restarted.
"""

__all__ = ["LAYOUTS", "LAYOUTS_OF_NODE"]

LAYOUTS = {
    "counters": 2,  # shm/counters.pxd
    "epochs": 1,  # shm/epochs.pxd
    "inbox": 1,  # shm/ring.pxd
    "records": 2,  # shm/records.pxd
    "routes": 1,  # shm/routes.py
    "registry": 1,  # shardbroker/stores/registry.py
    "exclusive": 1,  # shardbroker/stores/exclusive.py
    "view": 1,  # shm/view.pxd
    "handover": 1,  # acceptor/handover.pxd
}

LAYOUTS_OF_NODE = {
    "sessions": 1,  # shardbroker/link/session_channel.py
}
"""What a node of a cluster has besides: link-0 is restarted behind the workers, so both programs use the channel for a while."""
