"""Read pages of metrics."""

from prometheus_client.parser import text_string_to_metric_families


def names_of(page: str) -> set[str]:
    """Return the names of Stepstream's metrics on a page for Prometheus, as the catalogue writes them."""
    families = text_string_to_metric_families(page)
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    return {name for name in names if name.startswith("stepstream_")}
