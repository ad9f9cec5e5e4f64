"""The REST API and the dashboard, in a process of their own: theory of operation.

    browser, program  -- HTTP -->  guard (who is it, may it, how large)  -->  routes  -- control channel -->  manager  -->  workers

A route turns a request into verbs of `shardbroker.control`, and their results into the shapes that users of EMQX 5 know. Where a
route has the shape of one verb, it is derived from the verb's row. There is no logic of the broker here: the verbs define
parameters, checks and cost, so `ctl` and REST always agree. The process attaches to no shared memory but its own state; its crash
or hang affects no message.

`main` is the process, `app` assembles the application, `guard` is the middleware in front of it, `calls` calls verbs for a route,
`derived` makes routes from rows of verbs, `routes` has those written by hand, `paging` makes lists, `shapes` has rows and bodies,
`dashboard` has the pages. `reference` generates docs/rest.md from the routes.
"""

from shardbroker.api.main import run

__all__ = ["run"]
