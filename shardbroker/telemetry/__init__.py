"""Sends the figures of a broker by OTLP, with the libraries of OpenTelemetry, in a process of its own.

    manager --- settings, once; figures --> python -m shardbroker.telemetry --- OTLP over HTTP --> collector
            <-- what went wrong -----------

The manager starts the process while `opentelemetry.metrics.enable` is on, sends one frame (frames.py) at a time and waits for the
answer. A process that does not answer in time is killed. It has no state that matters: figures are cumulative, so that an export
has all that earlier ones had. docs/design/0018-opentelemetry.md has the reasons.

    frames    how both processes write to each other
    points    figures as data points of the library
    exporter  the library's exporter, with bounds on what a server answers
"""
