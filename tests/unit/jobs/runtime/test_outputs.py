"""Outputs survive the outbox."""

from stepstream.jobs.runtime.outputs import Output, pack, unpack


def test_outputs_survive_packing() -> None:
    outputs = [Output("t", "k", b"\x00v", "id", 5), Output("u", "", b"", "id2", 0)]
    assert unpack(pack(outputs)) == outputs
    assert pack([]) == b""
