"""Who may connect, and what they may do: rules, hashes, stores, the contract of back ends.

    worker                                            integrations (a process of its own)
    ------                                            -----------------------------------
    CONNECT -> bans -> Gate.ask(login) ============>  chain of authenticators: hashes in threads, back ends by asyncio
       parked, nothing more is read                      |
    CONNACK <- Verdict <============================= ok / denied / nobody knows

    PUBLISH, SUBSCRIBE -> Verdicts (cache) -> Rules (local sources) -> Gate.ask(question) ==> sources from the first remote one on

`contract` is what back ends and modules implement. `rules` matches; `files` reads rules and passwords from files, `acl_conf`
EMQX's form of rules. `stores` keeps users, rules and bans in LMDB. `hashing` verifies passwords, `scram` holds the conversation of
RFC 5802. `bans` has those that are not let in, and counts who flaps. `wire` is the form of questions and verdicts between the
processes, `gate` the worker's end of it, and `verdicts`, compiled, what a connection remembers of them.
"""
