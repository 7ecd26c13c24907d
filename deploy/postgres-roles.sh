#!/bin/sh
# The Postgres image runs this once, when its volume is empty. The service and MLflow each have a role
# without superuser rights and a database that the other cannot connect to. They need two databases anyway,
# because both use a table named alembic_version.
set -eu

for name in finetune mlflow; do
    psql --username "$POSTGRES_USER" --dbname postgres --no-psqlrc --set ON_ERROR_STOP=1 \
        --set name="$name" --set password="$(cat "/var/lib/postgres-secrets/$name-password")" <<'SQL'
CREATE ROLE :"name" LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD :'password';
CREATE DATABASE :"name" OWNER :"name";
REVOKE ALL ON DATABASE :"name" FROM PUBLIC;
SQL
done
psql --username "$POSTGRES_USER" --dbname postgres --no-psqlrc --set ON_ERROR_STOP=1 \
    --command 'REVOKE CONNECT ON DATABASE postgres, template1 FROM PUBLIC'
