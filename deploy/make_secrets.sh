#!/usr/bin/env bash
# Makes the secrets that docker-compose.yml reads, once; existing ones are left as they are.
set -euo pipefail
cd "$(dirname "$0")"
umask 077
mkdir -p secrets
random() { head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n'; }
if [ ! -e secrets/postgres_password ]; then
  random > secrets/postgres_password
  printf 'postgresql://tilewright:%s@postgres:5432/tilewright' "$(cat secrets/postgres_password)" > secrets/database_url
fi
[ -e secrets/ray_token ] || random > secrets/ray_token
[ -e secrets/api_keys ] || { random; echo; } > secrets/api_keys
# The containers run as a user of their own (10001) and as postgres, which must be able to read them.
chmod 0444 secrets/postgres_password secrets/database_url secrets/api_keys secrets/ray_token
echo "Secrets are in deploy/secrets; the API key is in deploy/secrets/api_keys"
