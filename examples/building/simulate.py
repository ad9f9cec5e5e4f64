"""Sensors of an office building for one simulated day, which passes in a minute: temperature and CO2 of each room.

    python examples/building/simulate.py [--minutes 1] [--host 127.0.0.1] [--port 1883] [--seed 1]

Each floor has a client of its own, and publishes by QoS 1 to building/<floor>/<room>/<quantity>:

    {"at": "2026-03-02T08:15:00", "value": 21.4}
"""

import argparse
import json
import math
import random
import time
from dataclasses import dataclass
from datetime import datetime, timedelta

import paho.mqtt.client as mqtt

DAY = datetime(2026, 3, 2)
STEP = timedelta(minutes=5)
STEPS = timedelta(days=1) // STEP
FLOORS, ROOMS = 3, 4
MEETING = (2, 4)
"""Floor and room in which meetings are held: its CO2 rises."""
OPEN_WINDOW = (3, 1)
"""Floor and room whose window is left open over noon: it gets cold."""
OUTSIDE_PPM = 420
ACKNOWLEDGED_S = 30
"""Longest wait for the acknowledgements of what was published."""


@dataclass
class Room:
    """The state of a room, in °C and ppm."""

    floor: int
    number: int
    temperature: float
    co2: float = OUTSIDE_PPM

    def step(self, hour: float) -> None:
        """Advances by STEP."""
        place = (self.floor, self.number)
        outside = 4 + 4 * math.sin((hour - 9) / 24 * 2 * math.pi)
        is_open = place == OPEN_WINDOW and 12 <= hour < 14
        people = self._people(hour, place)
        target = (20.5 if 5.5 <= hour < 18 else 16.5) + self.floor / 2
        heating = max(0.0, min(1.0, target - self.temperature))
        loss = (0.06 if is_open else 0.008) * (self.temperature - outside)
        self.temperature += 0.5 * heating + 0.012 * people - loss
        air = 0.4 if is_open else 0.045
        self.co2 += 14 * people - air * (self.co2 - OUTSIDE_PPM)

    def _people(self, hour: float, place: tuple[int, int]) -> int:
        if place == MEETING:
            return 9 if 10 <= hour < 11.5 or 14 <= hour < 15.5 else 0
        return 2 if 8 + self.number / 4 <= hour < 12 or 13 <= hour < 16 + self.floor / 2 else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1, help="duration of the day")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    rooms = [Room(floor, number, 16.3 + floor / 2) for floor in range(1, FLOORS + 1) for number in range(1, ROOMS + 1)]
    clients = [connect(arguments.host, arguments.port, f"building-floor-{floor}") for floor in range(1, FLOORS + 1)]
    began, sent = time.monotonic(), []
    for step in range(STEPS):
        at = DAY + step * STEP
        for room in rooms:
            room.step(at.hour + at.minute / 60)
            for quantity, value in (("temperature", room.temperature), ("co2", room.co2)):
                noisy = value * (1 + chance.gauss(0, 0.004))
                payload = json.dumps({"at": at.isoformat(), "value": round(noisy, 2)})
                topic = f"building/{room.floor}/{room.number}/{quantity}"
                sent.append(clients[room.floor - 1].publish(topic, payload, qos=1))
        time.sleep(max(0.0, began + (step + 1) / STEPS * arguments.minutes * 60 - time.monotonic()))
    for message in sent:
        message.wait_for_publish(ACKNOWLEDGED_S)
    for client in clients:
        client.disconnect()
        client.loop_stop()
    print(f"{sum(message.is_published() for message in sent)} of {len(sent)} messages acknowledged")


def connect(host: str, port: int, client_id: str) -> mqtt.Client:
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id)
    client.max_queued_messages_set(0)  # no limit: all messages of the day may wait for their acknowledgement
    client.connect(host, port)
    client.loop_start()
    return client


if __name__ == "__main__":
    main()
