"""Write the proof of an erasure: an event on the log that names what was removed and what remains."""

from collections.abc import Collection
from importlib.metadata import version

from stepstream.config import Settings
from stepstream.jobs.clickhouse import hidden_rows
from stepstream.jobs.erasure.findings import Findings, OffsetRange
from stepstream.jobs.erasure.request import ErasureRequest, parse_range_name
from stepstream.topics.catalogue import (
    CONSENTS,
    ERASURE_PROOFS,
    LABELED_TRAJECTORIES,
    OPEN_TRACES,
    SUBJECT_KEYS,
    TOPICS,
)
from stepstream.topics.codec import Codec
from stepstream.topics.events import (
    ErasedRange,
    Erasure,
    ErasureProof,
    ErasureRemainder,
    new_erased_range,
    new_erasure_proof,
    new_erasure_remainder,
)
from stepstream.topics.ids import derived_id, now_us
from stepstream.topics.producer import EventProducer

_SEND_S = 20.0
_REWRITING_S = 3600
"""Time that the proof allows for a rewriting (docs/measured/store-erasure.md: half a minute for ten million steps)."""


def build_proof(
    settings: Settings, decision: Erasure, request: ErasureRequest, found: Findings, hidden: Collection[str]
) -> ErasureProof:
    """Return the proof of a request whose removals are done, with hidden rows in the tables of `hidden`."""
    now = now_us()
    deleted = {parse_range_name(name): one for name, one in request.deleted.items()}
    return new_erasure_proof(
        event_id=derived_id("erase", request.request_id),
        occurred_at_us=now,
        request_id=request.request_id,
        tenant=decision["tenant"],
        subject=decision["subject"],
        requested_by=request.requested_by,
        requested_at_us=request.requested_at_us,
        erased_until_us=decision["occurred_at_us"],
        decisions=request.decisions,
        version=version("stepstream"),
        keys_destroyed=len(request.key_ids),
        made_unreadable=_ranges(found.unreadable),
        deleted=_ranges(deleted),
        rows_deleted={table: rows for table, rows in request.rows.items() if rows},
        consents_deleted=request.consents,
        objects_removed=len(found.objects),
        trajectories=len(found.trajectories),
        remaining=_remaining(settings, request, found, hidden, now),
    )


def send_proof(settings: Settings, proof: ErasureProof) -> None:
    """Write the proof durably.

    Raises:
        DeliveryFailed: Kafka did not acknowledge it within 20 seconds.
    """
    codec = Codec(settings)
    try:
        producer = EventProducer(settings.kafka, codec, "erase", linger_ms=0)
        producer.send(ERASURE_PROOFS, proof["request_id"], proof)
        producer.flush(_SEND_S)
    finally:
        codec.close()


def _ranges(ranges: dict[tuple[str, int], OffsetRange]) -> list[ErasedRange]:
    return [
        new_erased_range(
            topic=topic, partition=partition, first_offset=one.first, last_offset=one.last, records=one.records
        )
        for (topic, partition), one in sorted(ranges.items())
    ]


def _remaining(
    settings: Settings, request: ErasureRequest, found: Findings, hidden: Collection[str], now: int
) -> list[ErasureRemainder]:
    left = []
    for topic, records in sorted(found.remaining.items()):
        retention_ms = int(TOPICS[topic].settings(settings)["retention.ms"])
        left.append(
            new_erasure_remainder(
                place=topic,
                records=records,
                until_us=now + retention_ms * 1000 if retention_ms >= 0 else None,
                reason=remaining_reason(topic),
            )
        )
    if request.key_ids or request.consents:
        topics = " and ".join([SUBJECT_KEYS] * bool(request.key_ids) + [CONSENTS] * bool(request.consents))
        left.append(
            new_erasure_remainder(
                place="compaction", reason=f"replaced records of {topics} stay on disk until Kafka compacts the topic"
            )
        )
    if rows := request.rows_of(hidden):
        left.append(_hidden_rows(settings, rows, now))
    if found.trajectories and settings.jobs.snapshot_interval_s > 0:
        reason = (
            "snapshots of the stream jobs' state hold the person's name and sealed content until "
            f"{settings.jobs.snapshot_keep} newer ones of the partition are an hour old"
        )
        left.append(new_erasure_remainder(place="snapshots", reason=reason))
    return left


def removed_by_us(settings: Settings, now_us: int) -> int | None:
    """Return the time by which rows that are hidden now are gone from the disk; None: `store.rewrite_hours` is 0."""
    due_s = hidden_rows.next_due_s(now_us / 1e6, settings.store.rewrite_hours)
    return None if due_s is None else (due_s + _REWRITING_S + hidden_rows.OLD_PARTS_S) * 1_000_000


def _hidden_rows(settings: Settings, rows: int, now: int) -> ErasureRemainder:
    until_us = removed_by_us(settings, now)
    when = "at the next rewriting, which `store.rewrite_hours` sets" if until_us else "when its parts are rewritten"
    return new_erasure_remainder(
        place="store",
        records=rows,
        until_us=until_us,
        reason=f"no query returns these rows; the store removes their bytes {when}: `stepstream erasures rewrite` "
        "does so at once",
    )


def remaining_reason(topic: str) -> str:
    """Return the reason why records stay on a topic, and the remedy."""
    if topic == OPEN_TRACES:
        return "their traces are incomplete; run this again in a minute (the topic deletes them within two days)"
    if topic == LABELED_TRAJECTORIES:
        return (
            "they predate sealing, name no person, or belong to a trajectory shared with another person and predate "
            "the sealing of such labels under the keys of all; delete them with kafka-delete-records, or erase the "
            "other person too"
        )
    return (
        "they predate sealing, or name no person although their trajectory does; delete them with "
        "kafka-delete-records, or wait until the topic's retention deletes them"
    )
