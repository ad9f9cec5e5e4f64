"""Sends the figures of a broker, and spans of its messages, by OTLP, with the libraries of OpenTelemetry, in a process of its own.

    manager --- settings, once; data -----> python -m shardbroker.telemetry --- OTLP over HTTP --> collector
            <-- what went wrong -----------

The manager starts a process while `opentelemetry.metrics.enable` is on, and another one while `opentelemetry.traces.enable` is.
It sends one frame (frames.py) at a time and waits for the answer. A process that does not answer in time is killed. It has no state
that matters: figures are cumulative, so that an export has all that earlier ones had, and spans that were not accepted are lost.
docs/design/0018-opentelemetry.md has the reasons.

    frames    how both processes write to each other
    points    figures as data points of the library
    spans     spans of workers as those of the library
    exporter  the library's exporters, with bounds on what a server answers
"""
