"""What a client can send, one module for each family of packets: connect, publish, acknowledge, subscribe.

Each function takes the Channel that the packet arrived on, reads and changes its state, and answers through its primitives
(`ack`, `reply`, `report_failure`, `refuse`, `close`). Dispatch by packet type is one layer above: see worker/protocol.pyx.
"""
