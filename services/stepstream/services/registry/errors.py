"""Define the errors of Confluent's protocol, each an HTTP status, an error code and a message."""


class RegistryError(Exception):
    """An error answer to a request."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def subject_not_found(subject: str) -> RegistryError:
    """No live version exists under the subject."""
    return RegistryError(404, 40401, f"Subject '{subject}' not found.")


def version_not_found(version: object) -> RegistryError:
    """The subject has no such live version."""
    return RegistryError(404, 40402, f"Version {version} not found.")


def schema_not_found(schema_id: object = "") -> RegistryError:
    """No schema has that id, or the subject has no such schema."""
    return RegistryError(404, 40403, f"Schema {schema_id} not found".replace("  ", " "))


def subject_soft_deleted(subject: str) -> RegistryError:
    """The subject is already softly deleted; only a permanent delete is possible."""
    return RegistryError(404, 40404, f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently")


def subject_not_soft_deleted(subject: str) -> RegistryError:
    """A permanent delete requires a soft one before."""
    return RegistryError(404, 40405, f"Subject '{subject}' was not deleted first before being permanently deleted")


def version_soft_deleted(subject: str, version: int) -> RegistryError:
    """The version is already softly deleted; only a permanent delete is possible."""
    return RegistryError(
        404,
        40406,
        f"Subject '{subject}' Version {version} was soft deleted. Set permanent=true to delete permanently",
    )


def version_not_soft_deleted(subject: str, version: int) -> RegistryError:
    """A permanent delete requires a soft one before."""
    return RegistryError(
        404,
        40407,
        f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted",
    )


def no_subject_level(subject: str) -> RegistryError:
    """The subject follows the global level."""
    return RegistryError(404, 40408, f"Subject '{subject}' does not have subject-level compatibility configured")


def no_subject_mode(subject: str) -> RegistryError:
    """The subject follows the global mode."""
    return RegistryError(404, 40409, f"Subject '{subject}' does not have subject-level mode configured")


def incompatible(subject: str, level: str, messages: list[str]) -> RegistryError:
    """The schema breaks the subject's compatibility level."""
    details = "; ".join(messages)
    return RegistryError(
        409,
        409,
        f"Schema being registered is incompatible with an earlier schema for subject '{subject}' "
        f"under {level}: {details}",
    )


def invalid_schema(reason: str) -> RegistryError:
    """The text is no schema that this registry accepts."""
    return RegistryError(422, 42201, f"Invalid schema: {reason}")


def invalid_version(version: object) -> RegistryError:
    """Neither a number of a version nor `latest`."""
    return RegistryError(
        422,
        42202,
        f"The specified version '{version}' is not a valid version id. "
        'Allowed values are between [1, 2^31-1] and the string "latest"',
    )


def invalid_level(level: object, allowed: str) -> RegistryError:
    """The name is no compatibility level."""
    return RegistryError(422, 42203, f"Invalid compatibility level '{level}'. Valid values are {allowed}")


def write_timed_out(seconds: float) -> RegistryError:
    """Kafka did not confirm in time: the effect of the write is unknown, and it may be sent again."""
    return RegistryError(
        500,
        50002,
        f"Kafka did not confirm the write within {seconds:.1f} s: whether it took effect is unknown; send it again",
    )


def log_unreachable(reason: str) -> RegistryError:
    """Kafka cannot be reached; nothing was written."""
    return RegistryError(500, 50003, f"The schemas topic cannot be written now, nothing was stored: {reason}")
