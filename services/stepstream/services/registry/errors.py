"""The faults that Confluent's protocol names, each an HTTP status, an error code and a sentence."""


class RegistryError(Exception):
    """What a request is answered with when it cannot be served."""

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


def schema_not_found(what: object = "") -> RegistryError:
    """No schema has that id, or the subject does not hold that schema."""
    return RegistryError(404, 40403, f"Schema {what} not found".replace("  ", " "))


def subject_soft_deleted(subject: str) -> RegistryError:
    """The subject is deleted already; only a permanent delete is left."""
    return RegistryError(404, 40404, f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently")


def subject_not_soft_deleted(subject: str) -> RegistryError:
    """A permanent delete needs a soft one before it."""
    return RegistryError(404, 40405, f"Subject '{subject}' was not deleted first before being permanently deleted")


def version_soft_deleted(subject: str, version: int) -> RegistryError:
    """The version is deleted already; only a permanent delete is left."""
    return RegistryError(
        404,
        40406,
        f"Subject '{subject}' Version {version} was soft deleted. Set permanent=true to delete permanently",
    )


def version_not_soft_deleted(subject: str, version: int) -> RegistryError:
    """A permanent delete needs a soft one before it."""
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
    """The text is not a schema that this registry takes."""
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
    """Not a compatibility level."""
    return RegistryError(422, 42203, f"Invalid compatibility level '{level}'. Valid values are {allowed}")


def write_timed_out(seconds: float) -> RegistryError:
    """The log did not confirm in time; the write may or may not have happened, and may be sent again."""
    return RegistryError(
        500,
        50002,
        f"Kafka did not confirm the write within {seconds:.1f} s: whether it took effect is unknown; send it again",
    )


def log_unreachable(reason: str) -> RegistryError:
    """Kafka cannot be reached; nothing was written."""
    return RegistryError(500, 50003, f"The schemas topic cannot be written now, nothing was stored: {reason}")
