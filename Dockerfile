# An image of the broker: docker build -t shardbroker . (docs/operation-containers.md)
ARG BASE=docker.io/library/debian:bookworm-slim

FROM ${BASE} AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# systemd: for `shardbroker install --root`, which makes the environment that the next stage takes.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates gcc libc6-dev make python3 python3-dev python3-venv systemd \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN SYSTEM_PACKAGES=no make install \
 && mkdir -p /image/etc \
 && .venv/bin/shardbroker install --root /image

FROM ${BASE}
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates etcd-server python3 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 1883 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin shardbroker \
 && install -d -o shardbroker -g shardbroker -m 0700 /var/lib/shardbroker
COPY --from=build /image/opt/shardbroker /opt/shardbroker
COPY deploy/docker/shardbroker.toml /etc/shardbroker/shardbroker.toml
ENV PATH=/opt/shardbroker/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# By number, so that Kubernetes sees that it is not root.
USER 1883:1883
# All that is written besides /dev/shm and /tmp: with tmpfs for these the root file system may be read-only.
VOLUME /var/lib/shardbroker
EXPOSE 1883 8883 8083 8084 18083 18084
STOPSIGNAL SIGTERM
# The whole of it: the socket in the data directory, the manager, and the processes that it asks.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
    CMD ["shardbroker", "ctl", "--data-dir", "/var/lib/shardbroker", "status"]
ENTRYPOINT ["shardbroker"]
CMD ["serve", "--config", "/etc/shardbroker/shardbroker.toml"]
