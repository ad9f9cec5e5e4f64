r"""Programs in any language that take part in hooks: they provide the service of `exhook.proto`, EMQX's ExHook, over gRPC.

    worker --- event, question ---> Programs ---> Program ---> lane, lane, ...: a connection each
           <-- verdict, wanted ----            \-> Program

`service` is where the way from the workers ends, and loads the rest where there are programs. `contract` is gRPC's service as
protobuf has it; `requests` makes its requests of what workers say; `program` is one of them: whether it is there, what it wants,
its connections; `programs` all of them in their order, and what their answers mean.
"""
