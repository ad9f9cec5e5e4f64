"""The client's side of SCRAM (RFC 5802), for tests."""

import base64
import hashlib
import hmac
import secrets


class ScramClient:
    def __init__(self, algorithm: str, name: str, password: str) -> None:
        self.algorithm, self.password = algorithm, password
        self.bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={secrets.token_urlsafe(12)}"
        self.signature = b""

    def first(self) -> bytes:
        return f"n,,{self.bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
        salted = hashlib.pbkdf2_hmac(self.algorithm, self.password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
        client_key = hmac.digest(salted, b"Client Key", self.algorithm)
        bare = f"c=biws,r={fields['r']}"
        signed = f"{self.bare},{server_first.decode()},{bare}".encode()
        proof = hmac.digest(hashlib.new(self.algorithm, client_key).digest(), signed, self.algorithm)
        self.signature = hmac.digest(hmac.digest(salted, b"Server Key", self.algorithm), signed, self.algorithm)
        return f"{bare},p={base64.b64encode(bytes(a ^ b for a, b in zip(client_key, proof, strict=True))).decode()}".encode()

    def believes(self, server_final: bytes) -> bool:
        return server_final == b"v=" + base64.b64encode(self.signature)
