# Stand-ins for the official Postgres and Redis images, where none can be pulled: the same servers
# from Debian's packages, with as much of the official entry points as docker-compose.yml uses.
ARG BASE_IMAGE
FROM ${BASE_IMAGE} AS postgres
RUN groupadd --system --gid 999 postgres \
    && useradd --system --uid 999 --gid 999 --home-dir /var/lib/postgresql postgres \
    && apt-get update && apt-get install -y --no-install-recommends postgresql \
    && rm -rf /var/lib/apt/lists/* && ln -s /usr/lib/postgresql/*/bin/* /usr/local/bin/ \
    && install -d -o postgres -g postgres -m 0700 /var/lib/postgresql/data
# As in the official image.
RUN install -d -o postgres -g postgres -m 3777 /run/postgresql
COPY postgres-entrypoint /usr/local/bin/
ENTRYPOINT ["postgres-entrypoint"]

FROM ${BASE_IMAGE} AS redis
RUN apt-get update && apt-get install -y --no-install-recommends redis-server \
    && rm -rf /var/lib/apt/lists/*
