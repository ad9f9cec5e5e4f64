r"""Programs in any language that take part in hooks: they provide the service of `exhook.proto`, EMQX's ExHook, over gRPC.

    worker --- event, request ----> Programs ---> Program ---> lane, lane, ...: a connection each
           <-- result, wanted -----            \-> Program

`service` is the end of the channels from the workers; it loads the rest only if there are programs. `contract` is gRPC's service in
protobuf; `requests` builds its requests from the workers' messages. `program` is one program: its state, its requirements, its
connections. `programs` holds all of them in order, and evaluates their answers.
"""
