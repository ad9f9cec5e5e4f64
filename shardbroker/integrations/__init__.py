"""The process that talks to other systems, so that no worker ever waits: authenticators and authorizers.

`main` reads questions of the workers and sends verdicts; a question is one task, and nothing of it outlives its deadline. `chain`
asks one back end after another. `building` makes them from the settings, `modules` finds those that others have written. `stored`
has what looks up a hash or rules somewhere and judges them here; `postgresql`, `mysql`, `mongodb`, `redis` and `ldap` look them up.
`http`, `tokens` (JWT), `certificate` and `enhanced` (SCRAM) decide in ways of their own.

Passwords are hashed in a few threads. Every question to a back end has a timeout of its own, and as many as the pool allows are
asked at a time; the others wait here, with their own deadlines running.
"""
