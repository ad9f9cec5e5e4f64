"""The REST API and the dashboard, in a process of their own: theory of operation.

    browser, program  -- HTTP -->  guard (who is it, may it, how large)  -->  routes  -- control channel -->  manager  -->  workers

A route turns a request into verbs of `shardbroker.control`, and their results into the shapes that users of EMQX 5 know. There is
no logic of the broker's own here: what may be asked, how it is checked and what it costs is the verbs' matter, so `ctl` and REST
always agree. The process holds no shared memory but its own state; when it dies or hangs, no message notices.

`main` is the process, `app` puts the application together, `guard` stands before all of it, `asking` is how a route asks, `paging`
are lists, `shapes` are rows and bodies, `routes` are the paths by subject, `dashboard` are pages for
people. docs/rest.md is made from the routes by `reference`.
"""

from shardbroker.api.main import run

__all__ = ["run"]
