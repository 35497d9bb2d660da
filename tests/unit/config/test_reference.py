"""The page docs/settings.md matches the declarations, and every declaration is complete."""

from pathlib import Path

from stepstream.config import Settings, environment_of
from stepstream.config.reference import settings_page

ROOT = Path(__file__).parents[3]


def test_settings_page_is_current() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == settings_page(), "run `stepstream schemas generate`"


def test_every_setting_has_a_sentence() -> None:
    for section, info in Settings.model_fields.items():
        for name, field in info.annotation.model_fields.items():  # type: ignore[union-attr]
            assert field.description, f"{section}.{name}"
            assert field.description.endswith("."), f"{section}.{name}"


def test_a_setting_in_seconds_states_its_unit() -> None:
    rows = [line for line in settings_page().splitlines() if line.startswith("| `")]
    assert all(" | s | " in row for row in rows if "_s` | `STEPSTREAM" in row)


def test_the_page_lists_every_variable_once() -> None:
    page = settings_page()
    assert all(page.count(f"| `{name}` |") == 1 for name in environment_of(Settings()))
