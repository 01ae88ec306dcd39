#!/bin/bash
# Exits with 0 if the broker answers an ApiVersions request without an error. Needs bash only, and starts no JVM.
#
#   healthy.sh [HOST PORT]     default: 127.0.0.1 9092
set -eu
exec 3<>"/dev/tcp/${1:-127.0.0.1}/${2:-9092}"
# Size 11, key 18 (ApiVersions), version 0, correlation id 1, client id "h".
printf '\0\0\0\13\0\22\0\0\0\0\0\1\0\1h' >&3
# The answer: four bytes of size, the correlation id, an error code.
answer=$(timeout 4 head -c 10 <&3 | od -An -v -tx1 | tr -d ' \n')
test "${answer:8}" = 000000010000
