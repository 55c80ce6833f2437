"""Values written to a group's store before it was closed to others are not used."""

from torch.distributed import TCPStore

from ftslurm.worker import session


def test_what_a_stranger_was_quick_enough_to_write_is_gone() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stranger = TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False)
    stranger.set("manager_addr", "http://127.0.0.1:9")
    stranger.set("replica_id", "his")
    session.empty(store)
    assert store.num_keys() == 0
    assert not store.check(["manager_addr"])
    session.empty(store)
