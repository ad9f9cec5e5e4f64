"""What a message through the ExProto gateway costs: python -m tests.gateways.bench_exproto [--devices 20] [--messages 500]

Each device sends a line, which the program publishes with QoS 1 and answers: an event and two calls for each message. The program
is tests/gateways/exproto_program.py; CPU time is that of the gateway's process alone.
"""

import argparse
import threading
import time

import psutil

from tests.gateways.test_exproto import World


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--messages", type=int, default=500)
    options = parser.parse_args()
    with World() as world:
        devices = [world.device() for _ in range(options.devices)]
        for number, device in enumerate(devices):
            device.connect(f"bench{number}")
        gateway = psutil.Process(world.broker.child_pids("sb-gateway-expr")[0])

        def run(number: int) -> None:
            for message in range(options.messages):
                assert devices[number].ask(f"PUB 1 bench/{number} {'x' * 100} {message}") == "CODE 0 "

        before, started = gateway.cpu_times(), time.monotonic()
        threads = [threading.Thread(target=run, args=(number,)) for number in range(options.devices)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took, after = time.monotonic() - started, gateway.cpu_times()
        count = options.devices * options.messages
        cpu = after.user + after.system - before.user - before.system
        print(f"{count} messages in {took:.1f} s: {count / took:,.0f}/s, {cpu / count * 1e6:.0f} us of the gateway's CPU each")
        for device in devices:
            device.socket.close()


if __name__ == "__main__":
    main()
