#!/bin/sh
# Makes the secrets that compose.yaml mounts: a password for each Redis user, Redis's list of users and rights, and the
# token with which an operator signs in to the console.
# Also writes client.env, which tells the `tidegate` command on this machine where the stack is.
#
#   deploy/make-secrets.sh              writes deploy/secrets; run it once
#   . deploy/secrets/client.env         in each shell in which you use `tidegate`
set -eu
umask 077
folder=${1:-"$(dirname "$0")/secrets"}
mkdir -p "$folder"
if [ -e "$folder/redis_acl" ] && [ -e "$folder/console_operators" ]; then
    echo "$folder already holds secrets; to make new ones, remove it first" >&2
    exit 0
fi
secret() { head -c 32 /dev/urandom | base64 | tr -d '/+=\n'; }
for user in decider actuator monitor; do
    secret > "$folder/redis_$user"
done
printf '{"operator": "%s"}\n' "$(secret)" > "$folder/console_operators"
hash() { printf %s "$(cat "$folder/redis_$1")" | sha256sum | cut -d ' ' -f 1; }
rights='+@read +@write +@scripting +@connection +ping -@dangerous -@pubsub'
# shellcheck disable=SC2086  # $rights is a list
{
    echo "user default off"
    echo "user decider on #$(hash decider) ~tidegate:cooldown:* ~tidegate:pool:* ~tidegate:view" $rights
    echo "user actuator on #$(hash actuator) ~tidegate:fence:*" $rights
    echo "user monitor on #$(hash monitor) resetkeys +ping +info"
} > "$folder/redis_acl"
cat > "$folder/client.env" <<END
export TIDEGATE_BOOTSTRAP_SERVERS=127.0.0.1:\${HOST_KAFKA_PORT:-9094}
export TIDEGATE_REDIS_URL=redis://127.0.0.1:\${HOST_REDIS_PORT:-6380}/0
export TIDEGATE_REDIS_USERNAME=monitor
export TIDEGATE_REDIS_PASSWORD=$(cat "$folder/redis_monitor")
END
# The containers' users do not own these files. The folder keeps everyone else on this machine out.
chmod 0444 "$folder"/redis_* "$folder/console_operators"
echo "wrote $folder"
