"""What the stack does itself between starting processes; each is safe to do again."""

from stepstream.config import Settings


def apply_topics(settings: Settings) -> None:
    """Creates or alters the topics and registers their schemas, from the catalogue."""
    from stepstream.topics import admin

    admin.apply(settings)


def migrate_store(settings: Settings) -> None:
    """Brings the analytics store's tables and views to what the code expects."""
    from stepstream.jobs import migrate

    migrate.migrate(settings)
