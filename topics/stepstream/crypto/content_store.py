"""Store the content of records that are too large for Kafka, as objects at `large_records.store`.

An object is written before the record that names it is sent, and never changed. Its path begins with a digest of the
tenant, and a reader opens only paths of the record's own tenant. `jobs.erasure` removes a person's objects, and
`stepstream large-records sweep` those that no record names.
"""

import hashlib
import re
from datetime import UTC, datetime

from stepstream.config import Settings
from stepstream.core.object_store import address_of, open_file, write_file
from stepstream.topics.codec import ContentUnavailable, Malformed, MissingContent, Oversized
from stepstream.topics.events import ContentClaim, new_content_claim

_MB = 1024 * 1024
_NAME = re.compile(r"\d{4}-\d\d-\d\d/[0-9a-f]{64}")


def content_address(settings: Settings) -> str:
    """Return the URI of the store."""
    return address_of(settings, settings.large_records.store, "large-records")


def tenant_folder(tenant: str) -> str:
    """Return the folder of a tenant's objects: a digest, since names may be no valid paths."""
    return hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class ContentStore:
    """The objects of one installation. Thread-safe; each call blocks for the store."""

    def __init__(self, settings: Settings) -> None:
        self._uri = content_address(settings)
        self._max_mb = settings.large_records.max_mb

    def write(self, tenant: str, content: bytes) -> ContentClaim:
        """Store the content of a tenant's record.

        Raises:
            Oversized: it is too large.
            ContentUnavailable: the store does not accept it now.
        """
        if len(content) > self._max_mb * _MB:
            raise Oversized(f"{len(content)} bytes of content exceed large_records.max_mb, {self._max_mb} MB")
        digest = hashlib.sha256(content).hexdigest()
        path = f"{tenant_folder(tenant)}/{datetime.now(UTC):%Y-%m-%d}/{digest}"
        try:
            write_file(self._uri, path, content)
        except OSError as error:
            raise ContentUnavailable(f"a large record waits, {self._uri} does not take its content: {error}") from error
        return new_content_claim(path=path, sha256=digest, size_bytes=len(content))

    def read(self, tenant: str, claim: ContentClaim) -> bytes:
        """Return the content that a tenant's record names.

        Raises:
            MissingContent: there is no such object.
            Malformed: the path is not one of this tenant's, or the content is not what was written.
            Oversized: it is too large.
            ContentUnavailable: the store does not answer now.
        """
        path, size = claim["path"], claim["size_bytes"]
        folder, _, name = path.partition("/")
        if folder != tenant_folder(tenant) or not _NAME.fullmatch(name):
            raise Malformed("the object of its content is not one of its tenant's")
        if not 0 <= size <= self._max_mb * _MB:
            raise Oversized(f"{size} bytes of content exceed large_records.max_mb, {self._max_mb} MB")
        try:
            with open_file(self._uri, path) as stream:
                content = stream.read(size + 1)
        except FileNotFoundError as error:
            raise MissingContent(
                f"{path} with its content is not in {self._uri}: it was removed, or large_records.store differs from "
                "the writer's"
            ) from error
        except OSError as error:
            raise ContentUnavailable(f"a large record waits, {self._uri} does not answer: {error}") from error
        if len(content) != size or hashlib.sha256(content).hexdigest() != claim["sha256"]:
            raise Malformed(f"{path} has not the content that the record names: it was changed or cut")
        return content
