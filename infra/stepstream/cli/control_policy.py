"""Read the file of a control policy, with its own rules."""

from pathlib import Path

import click

from stepstream.services.control.decide.own_rules import OwnRule
from stepstream.services.control.decide.policy import ControlPolicy, PolicyError
from stepstream.services.control.rule_packages import load_rules


def read_policy(file: Path) -> tuple[ControlPolicy, tuple[OwnRule, ...]]:
    """Return the policy and its loaded own rules.

    Raises:
        click.ClickException: the file is no control policy, or a rule is not installed.
    """
    try:
        document = file.read_text("utf-8-sig")
        policy = ControlPolicy.parse(document)
        return policy, load_rules(policy, document)
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file} is no control policy: it is not UTF-8 ({error.reason})") from None
    except PolicyError as error:
        raise click.ClickException(f"{file} is no control policy: {error}") from None
