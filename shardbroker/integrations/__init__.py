"""The process that communicates with other systems, so that no worker ever waits: authenticators, authorizers, programs behind
hooks.

`main` reads the workers' requests and sends results. A request is one task, of which nothing outlives the deadline. `auth` has
authenticators and authorizers, `exhook` the programs.
"""
