"""Who may connect, and what they may do: rules, hashes, stores, the contract of back ends.

    worker                                            integrations (a process of its own)
    ------                                            -----------------------------------
    CONNECT -> bans -> AuthClient.ask(login) ======>  chain of authenticators: hashes in threads, back ends by asyncio
       suspended, nothing more is read                   |
    CONNACK <- AuthResult <=======================  allowed / denied / unknown

    PUBLISH, SUBSCRIBE -> AclCache -> Rules (local sources) -> AuthClient.ask(request) ==> sources from the first remote one on

`contract` is what back ends and modules implement. `rules` matches; `files` reads rules and passwords from files, `acl_conf`
EMQX's form of rules. `stores` keeps users, rules and bans in LMDB. `hashing` verifies passwords, `scram` holds the conversation of
RFC 5802. `bans` has those that are not let in, and counts who flaps. `wire` encodes requests and results between the
processes, `auth_client` is the worker's end, and `acl_cache`, compiled, what a connection remembers of the results.
"""
