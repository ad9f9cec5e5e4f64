"""Access control: bans, authentication, authorization, and the contract of back ends.

    worker                                            integrations (a process of its own)
    ------                                            -----------------------------------
    CONNECT -> bans -> AuthClient.request(login) ======>  chain of authenticators: hashes in threads, back ends by asyncio
       suspended, nothing more is read                   |
    CONNACK <- AuthResult <=======================  allowed / denied / unknown

    PUBLISH, SUBSCRIBE -> AclCache -> Rules (local sources) -> AuthClient.request(request) ==> sources from the first remote one on

`contract` is the interface that back ends and modules implement. `rules` matches; `files` reads rules and passwords from files,
`acl_conf` EMQX's form of rules. `stores` keeps users, rules and bans in LMDB. `hashing` verifies passwords, `scram` implements the
exchange of RFC 5802. `bans` finds the ban of a client, and detects flapping clients. `wire` encodes requests and results between
the processes, `auth_client` is the worker's end, and `acl_cache`, compiled, holds the results of one connection.
"""
