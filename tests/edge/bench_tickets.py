"""What a session ticket saves: CPU of acceptor and worker for a connection over TLS, in full and resumed, in turn.

    python -m tests.edge.bench_tickets [--connections 500] [--rounds 5]
"""

import argparse
import ssl
import statistics
import subprocess
import tempfile
from pathlib import Path

from tests.edge.conftest import Edge
from tests.edge.test_tls_tickets import Resuming
from tests.harness.needed import needed

KINDS = {"P-256": ("ec", "-pkeyopt", "ec_paramgen_curve:P-256"), "RSA 2048": ("rsa:2048",)}
VERSIONS = {"TLS 1.2": ssl.TLSVersion.TLSv1_2, "TLS 1.3": ssl.TLSVersion.TLSv1_3}


def certificate(directory: Path, kind: str) -> Path:
    """Makes a certificate with its key in one file."""
    path = directory / f"{kind.replace(' ', '-')}.pem"
    options = ["-nodes", "-subj", "/CN=localhost", "-days", "2", "-keyout", str(path), "-out", f"{path}.crt"]
    subprocess.run([needed("openssl"), "req", "-x509", "-newkey", *KINDS[kind], *options], check=True, capture_output=True)
    with path.open("ab") as file:
        file.write(Path(f"{path}.crt").read_bytes())
    return path


def cpu_s(broker: Edge) -> float:
    """Returns the CPU time of the acceptors and workers, seconds: exact, other than in whole ticks."""
    pids = [pid for title in ("acceptor", "worker") for pid in broker.child_pids(title)]
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9


def cost_us(broker: Edge, client: Resuming, connections: int, resumed: bool) -> float:
    """Returns the CPU time of a connection, us."""
    before = cpu_s(broker)
    for _ in range(connections):
        if not resumed:
            client.session = None
        with client.dial() as tls:
            tls.sendall(b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x3c\x00\x03abc")
            assert tls.recv(4) == b"\x20\x02\x00\x00"
            assert tls.session_reused == resumed
            tls.sendall(b"\xe0\x00")
            client.session = tls.session
    return 1e6 * (cpu_s(broker) - before) / connections


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=500, help="of each kind in a round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for kind in KINDS:
            tls = {"type": "ssl", "tls.certfile": str(certificate(Path(directory), kind)), "tls.session_tickets": True}
            with Edge({"ssl": tls}, workers=1, settings={"process.acceptors": 1}) as broker:
                for name, version in VERSIONS.items():
                    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                    context.minimum_version = context.maximum_version = version
                    client = Resuming(broker.at("ssl"), context)
                    client.connect("first")
                    rounds = [
                        (cost_us(broker, client, options.connections, False), cost_us(broker, client, options.connections, True))
                        for _ in range(options.rounds)
                    ]
                    full, resumed = (statistics.median(one[at] for one in rounds) for at in (0, 1))
                    ratios = sorted(one[1] / one[0] for one in rounds)
                    print(
                        f"{kind} {name}: full {full:.0f} us, resumed {resumed:.0f} us, ratio {statistics.median(ratios):.2f} "
                        f"({ratios[0]:.2f} to {ratios[-1]:.2f})",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
