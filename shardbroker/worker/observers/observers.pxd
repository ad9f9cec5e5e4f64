"""The watcher of a worker: passes each call on to the features whose bit is set."""
from cython cimport final

from shardbroker.session.context cimport WorkerContext
from shardbroker.session.watcher cimport Watcher
from shardbroker.worker.observers.client_rates cimport ClientRates
from shardbroker.worker.observers.slow_subscriptions cimport SlowSubscriptions
from shardbroker.worker.observers.spans cimport Spans
from shardbroker.worker.observers.topic_metrics cimport TopicMetrics
from shardbroker.worker.observers.traces cimport Traces


@final
cdef class Observers(Watcher):
    cdef WorkerContext context
    cdef readonly Traces traces
    cdef readonly SlowSubscriptions slow_subscriptions
    cdef readonly TopicMetrics topic_metrics
    cdef readonly ClientRates client_rates
    cdef readonly Spans spans
