"""Clients that people use, against the broker: paho-mqtt, aiomqtt, gmqtt, mosquitto_pub and mosquitto_sub.

The conformance tests say what is right byte by byte; these say that existing clients get along with it. Each
client goes through what its users do most: all QoS levels, retained messages, wills, sessions, unsubscribing.
"""
