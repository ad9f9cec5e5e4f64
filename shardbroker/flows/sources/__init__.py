"""Sources: what other systems send to this broker.

    server --> driver.run() --> SourceServer.take()        thread of connectors, one event loop
                                     | records, a batch at a time; bell
                                     v
               Intake.turn()                               loop of the process flows, which never waits
                                     | lanes, by key
                                     v
               worker: publishes, and journals what rules name behind FROM
                                     | the lane is past the batch
                                     v
               done() --> driver acknowledges at the server

A source runs in one process flows, by crc32 of its id. What was taken and not acknowledged arrives again after a kill: at least
once, never lost.
"""
