"""Chains: back ends are tried in order, until one decides."""

from collections.abc import Mapping, Sequence

from shardbroker.access.contract import Answer, Authenticator, Authorizer, AuthRequest, BackendError, Client, Outcome, deny
from shardbroker.integrations.failures import Report, describe
from shardbroker.mqtt.spec import ReasonCode

__all__ = ["AuthenticatorChain", "SourceChain"]


class AuthenticatorChain:
    """Authenticates clients by the authenticators that a chain names."""

    def __init__(self, members: Mapping[str, Authenticator], on_error: str, report: Report) -> None:
        self._members = members
        self._denies_on_error = on_error == "deny"
        self._report = report

    async def authenticate(self, names: Sequence[str], client: Client) -> tuple[Answer, str]:
        """Returns the answer for a client, and a reason for the log.

        An unknown user gets the same answer as a wrong password (0x86), so that the two cannot be distinguished; a client without a
        user name gets 0x87. If a back end that might know the client failed, the answer is 0x88.
        """
        failed = ""
        for name in names:
            member = self._members.get(name)
            if member is None:
                continue  # scram takes part in exchanges only
            try:
                answer = await member.authenticate(client)
                if not isinstance(answer, Answer):
                    raise BackendError(f"response: must be an Answer, got {type(answer).__name__}")
            except Exception as error:
                self._report(name, describe(error))
                if self._denies_on_error:
                    return deny(ReasonCode.SERVER_UNAVAILABLE), f"{name} failed"
                failed = failed or name
                continue
            if answer.outcome is Outcome.OK:
                return answer, name
            if answer.outcome is Outcome.DENY:
                return answer, f"denied by {name}"
        if failed:
            return deny(ReasonCode.SERVER_UNAVAILABLE), f"{failed} failed; no other authenticator knows this client"
        reason_code = ReasonCode.BAD_USER_NAME_OR_PASSWORD if client.username else ReasonCode.NOT_AUTHORIZED
        return deny(reason_code), "no authenticator knows this client"


class SourceChain:
    """Authorizes actions by the sources, from the first one that a worker cannot evaluate."""

    def __init__(self, members: Sequence[tuple[str, Authorizer]], on_error: str, report: Report) -> None:
        self._members = members
        self._denies_on_error = on_error == "deny"
        self._report = report

    async def authorize(self, client: Client, requests: Sequence[AuthRequest]) -> list[bool | None]:
        """Returns True or False for each request, or None if no source has a rule for it."""
        decided: list[bool | None] = [None] * len(requests)
        open_places = list(range(len(requests)))
        for name, member in self._members:
            if not open_places:
                break
            try:
                answers = await member.authorize(client, [requests[place] for place in open_places])
                if len(answers) != len(open_places) or any(answer not in (True, False, None) for answer in answers):
                    raise BackendError("response: must have True, False or None for each request")
            except Exception as error:
                self._report(name, describe(error))
                if self._denies_on_error:
                    for place in open_places:
                        decided[place] = False
                    break
                continue
            for place, answer in zip(open_places, answers, strict=True):
                decided[place] = answer
            open_places = [place for place in open_places if decided[place] is None]
        return decided
