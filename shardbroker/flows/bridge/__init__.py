"""Messages from the journals of one broker to another broker of this kind, as the records that they are.

    journal --> Picker --> frames --> TCP or TLS --> Records --> lane of a worker --> published, journalled with the position
                  ^                                     |
                  cursor <--------- DATA_ACK <----------+ once the worker is done with them

Each journal has a connection of its own. What is sent again after a kill of either side has positions that the worker has seen, and
is dropped there. No message is decoded into Python objects on this way, so rules that lead here select whole messages.
"""
