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
if [ -e "$folder/console_operators" ] && [ -e "$folder/client.env" ]; then
    echo "$folder already holds secrets; to make new ones, remove it first" >&2
    exit 0
fi
new=$folder/.new
rm -rf "$new"
mkdir -p "$new"
trap 'rm -rf "$new"' EXIT
# The shell ignores a failure within a pipe, or within the arguments of a command.
secret() { text=$(head -c 32 /dev/urandom | base64) && [ -n "$text" ] && printf %s "$text" | tr -d '/+=\n'; }
hash() { sum=$(sha256sum < "$new/redis_$1") && echo "${sum%% *}"; }
for user in decider actuator monitor; do
    secret > "$new/redis_$user"
done
operator=$(secret)
decider=$(hash decider)
actuator=$(hash actuator)
monitor=$(hash monitor)
printf '{"operator": "%s"}\n' "$operator" > "$new/console_operators"
rights='+@read +@write +@scripting +@connection +ping -@dangerous -@pubsub'
cat > "$new/redis_acl" <<END
user default off
user decider on #$decider ~tidegate:cooldown:* ~tidegate:pool:* ~tidegate:view $rights +info
user actuator on #$actuator ~tidegate:fence:* $rights
user monitor on #$monitor resetkeys +ping +info
END
cat > "$new/client.env" <<END
export TIDEGATE_BOOTSTRAP_SERVERS=127.0.0.1:\${HOST_KAFKA_PORT:-9094}
export TIDEGATE_REDIS_URL=redis://127.0.0.1:\${HOST_REDIS_PORT:-6380}/0
export TIDEGATE_REDIS_USERNAME=monitor
export TIDEGATE_REDIS_PASSWORD=$(cat "$new/redis_monitor")
END
# The containers' users do not own these files. The folder keeps everyone else on this machine out.
chmod 0444 "$new"/redis_* "$new/console_operators"
mv -f "$new"/redis_* "$new/console_operators" "$folder"
mv -f "$new/client.env" "$folder"  # the last one: with it, the secrets are complete
echo "wrote $folder"
