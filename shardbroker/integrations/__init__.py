"""The process that talks to other systems, so that no worker ever waits: authenticators, authorizers and programs behind hooks.

`main` reads questions of the workers and sends verdicts; a question is one task, and nothing of it outlives its deadline. `auth`
has authenticators and authorizers, `exhook` the programs.
"""
