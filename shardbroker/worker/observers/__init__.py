"""Observation of single messages and packets, for as long as it is asked for; session/watcher.pxd lists the places that call it.

    traces               an event for each packet and message that matches, through the manager's ring into the manager's files
    slow_subscriptions   the slowest deliveries, kept in the worker until a command reads them
    topic_metrics        counts of the topics and filters in `topic_metrics.topics`
    client_rates         counts per client in windows of two seconds, while a command asks for them
    spans                spans of messages with a trace context, kept in the worker until a command reads them
    trace_context        the user properties `traceparent` and `tracestate`

    WorkerContext.watch  a bit per feature  ->  Observers (observers.pyx)  ->  the features whose bit is set

While no bit is set, each place costs one test, and nothing here is called.
"""
