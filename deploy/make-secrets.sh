#!/bin/sh
# Makes the secrets that compose.yaml mounts, once: a password per Redis user and Redis' list of users and rights.
set -eu
umask 077
folder=${1:-"$(dirname "$0")/secrets"}
mkdir -p "$folder"
if [ -e "$folder/redis_acl" ]; then
    echo "$folder holds secrets already; remove it to make new ones" >&2
    exit 0
fi
for user in decider actuator monitor; do
    head -c 32 /dev/urandom | base64 | tr -d '/+=\n' > "$folder/redis_$user"
done
hash() { printf %s "$(cat "$folder/redis_$1")" | sha256sum | cut -d ' ' -f 1; }
rights='+@read +@write +@scripting +@connection +ping -@dangerous -@pubsub'
{
    echo "user default off"
    # shellcheck disable=SC2086
    echo "user decider on #$(hash decider) ~tidegate:cooldown:* ~tidegate:pool:* ~tidegate:view" $rights
    echo "user actuator on #$(hash actuator) ~tidegate:fence:*" $rights
    echo "user monitor on #$(hash monitor) resetkeys +ping"
} > "$folder/redis_acl"
# The containers' users are not the owner of these files; the folder keeps everyone else out on this machine.
chmod 0444 "$folder"/redis_*
echo "wrote $folder"
