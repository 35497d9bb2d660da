#!/usr/bin/env bash
# Publish a support agent's trajectory: two steps on `steps`, then the outcome on `feedback`, which ends it.
# Needs curl, jq and kcat. Prints topic, trajectory and id of each event, one line of JSON each.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

brokers=${STEPSTREAM_KAFKA_BOOTSTRAP:-127.0.0.1:9092}
registry=${STEPSTREAM_SCHEMA_REGISTRY_URL:-http://127.0.0.1:8081}
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

uuid7() { # milliseconds since the epoch, then random bits
    local time random
    time=$(printf '%012x' "$(date +%s%3N)")
    random=$(od -An -N10 -tx1 /dev/urandom | tr -d ' \n')
    printf '%s-%s-7%s-%x%s-%s' "${time:0:8}" "${time:8:4}" "${random:0:3}" $((8 + 0x${random:3:1} % 4)) "${random:4:3}" "${random:7:12}"
}

schema_of() { # save a topic's newest schema and id; `stepstream topics apply` registered it
    curl --silent --show-error --fail "$registry/subjects/$1-value/versions/latest" >"$work/$1.json" ||
        { echo "no schema for $1 at $registry: has \`stepstream topics apply\` run?" >&2 && exit 1; }
}

# publish TOPIC TYPE JSON: returns when all in-sync replicas have the event.
publish() {
    local topic=$1 type=$2 event=$3 id body
    id=$(jq .id "$work/$topic.json")
    body=$(jq -r -L "$here" --argjson schema "$(jq '.schema | fromjson' "$work/$topic.json")" \
        'include "avro"; encode($schema)' <<<"$event")
    # The Confluent wire format: a zero byte, the schema's id as four big-endian bytes, the Avro body.
    printf "$(printf '00%08x%s' "$id" "$body" | sed 's/../\\x&/g')" >"$work/value"
    kcat -P -b "$brokers" -t "$topic" -k "$(jq -r .trajectory_id <<<"$event")" \
        -X acks=all -X enable.idempotence=true -X partitioner=murmur2_random \
        -H ce_specversion=1.0 -H "ce_id=$(jq -r .event_id <<<"$event")" -H "ce_type=$type" \
        -H "ce_source=$producer" -H content-type=application/avro "$work/value"
    jq -c --arg topic "$topic" '{topic: $topic, trajectory_id, event_id}' <<<"$event"
}

producer=shell-example/0.1.0
trajectory=$(uuid7)

# Print the fields that all events have. `consent` of the person behind the request: train (learn from it), analyse
# (statistics only) or none.
envelope() {
    jq -n --arg event "$(uuid7)" --arg trajectory "$trajectory" --arg producer "$producer" \
        --argjson now "$(date +%s%6N)" \
        '{event_id: $event, occurred_at_us: $now, producer: $producer, consent: "train", trajectory_id: $trajectory}'
}

about='{task_id: "refund-A17", agent: "support-agent", environment: "support-desk", harness_version: "support@1",
        model: "scripted", fidelity: "text", sampling: {}}'

schema_of steps
schema_of feedback

publish steps stepstream.Step "$(envelope | jq ". + $about + {
    step_index: 0,
    messages: [{role: \"system\", content: \"You help customers with their orders.\"},
               {role: \"user\", content: \"My kettle from order A17 arrived broken – \\u201cin pieces\\u201d.\"}],
    response: {role: \"assistant\", tool_calls: [{call_id: \"call_0\", name: \"refund\",
               arguments: ({order: \"A17\", amount: 49.9} | tojson), result: ({refunded: 49.9} | tojson), duration_ms: 12.5}]},
    finish_reason: \"tool_calls\"}")"

# A step carries only new content: it shares the first prompt's two messages and the first response.
publish steps stepstream.Step "$(envelope | jq ". + $about + {
    step_index: 1, prompt_shared_messages: 3,
    messages: [{role: \"tool\", tool_call_id: \"call_0\", content: ({refunded: 49.9} | tojson)}],
    response: {role: \"assistant\", content: \"I am sorry. Your 49.90 are on their way back to you.\"},
    finish_reason: \"stop\"}")"

# The outcome ends the trajectory. With the index of its last step, `label` waits for late steps.
publish feedback stepstream.Feedback "$(envelope | jq '. + {
    name: "outcome", value: 1, source: "environment", end: "terminated", last_step_index: 1}')"
