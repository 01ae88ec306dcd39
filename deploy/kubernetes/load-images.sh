#!/bin/sh
# Builds all images of this checkout, and loads them into a cluster with the given command, which gets their names:
#
#   deploy/kubernetes/load-images.sh kind load docker-image
#   deploy/kubernetes/load-images.sh minikube image load
#
# It needs a Docker daemon. TAG is the tag of the images; PYTHON_IMAGE and SPARK_IMAGE are what they are made from, if
# not what deploy/Dockerfile says. Kafka and Redis of overlays/demo are loaded too.
set -eu
[ $# -gt 0 ] || { echo "load-images.sh: which command loads images, such as \`kind load docker-image\`?" >&2; exit 2; }
cd "$(dirname "$0")/../.."
tag=${TAG:-0.1.0}
context=$(mktemp)
trap 'rm -f "$context"' EXIT
trap 'exit 1' INT TERM
# What deploy/Dockerfile copies, whichever builder Docker has: not all of them read Dockerfile.dockerignore.
tar -cf "$context" --exclude=__pycache__ deploy/Dockerfile deploy/requirements deploy/examples deploy/kafka deploy/spark \
    pyproject.toml setup.py README.md LICENSE tidegate services

names=
build() {  # TARGET SERVICE NAME
    echo "building $3:$tag"
    docker build --quiet --file deploy/Dockerfile --target "$1" --build-arg "SERVICE=$2" \
        ${PYTHON_IMAGE:+--build-arg "PYTHON_IMAGE=$PYTHON_IMAGE"} ${SPARK_IMAGE:+--build-arg "SPARK_IMAGE=$SPARK_IMAGE"} \
        --tag "$3:$tag" - < "$context" >/dev/null
    names="$names $3:$tag"
}

for service in collector decider actuator; do build service "$service" "tidegate/$service"; done
for service in operator keda; do build fleet "$service" "tidegate/$service"; done
build console console tidegate/console
# A builder that makes every stage up to its target finds those of the console made already.
build spark-kubernetes console tidegate/spark-kubernetes
for name in $(sed -n 's/^ *image: \([^t].*\)/\1/p' deploy/kubernetes/overlays/demo/kafka.yaml deploy/kubernetes/overlays/demo/redis.yaml); do
    docker image inspect "$name" >/dev/null 2>&1 || docker pull --quiet "$name"
    names="$names $name"
done
echo "loading $(echo $names | wc -w) images: $*"
# shellcheck disable=SC2086  # a list
"$@" $names
