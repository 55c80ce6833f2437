"""The names of torch and torchft that ftslurm replaces or reads although they promise nothing about them.

For each use: why, and the consequence if the installed version lacks a name. patch_fit.py looks all of them up when a
worker starts, and says which use it has left out. A use that keeps strangers out is never left out (CLOSED).
tests/local/test_shape_of_torchft.py walks this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

CLOSED = "Everybody who reaches this machine could read and change the training, so the script does not start"
Names = Mapping[str, str]  # MODULE or MODULE:CLASS -> names in it


class Patch(Enum):
    """One use: the consequence without it, and the names that it needs.

    f() is a function, method or class. Another name in a class is also one that its methods use, such as an attribute
    of its instances. Where versions differ there are several sets of names, and one of them must be complete.
    """

    def __init__(self, without: str, *forms: Names) -> None:
        self.without = without
        self.forms = forms

    # --- defects of torchft: torchft_patches.py ---
    # DistributedDataParallel takes the death of a group inside the gradients' allreduce.
    COMM_HOOK = (
        "the death of one group may end the scripts of the others, which use torchft's DistributedDataParallel",
        {"torchft.ddp:DistributedDataParallel": "_comm_hook()", "torchft.manager:_ManagedFuture": "_fut"},
        {"torchft.process_group:ProcessGroup": "reconfigure()"},  # torchft 0.3 does not need it
    )
    # PureDistributedDataParallel, which never waits for its average, is refused.
    PURE_DDP = (
        "with PureDistributedDataParallel groups may train different models: use DistributedDataParallel",
        {"torchft.ddp": "PureDistributedDataParallel()"},
    )
    # A step with a process group in a child process can be committed.
    BABY_FUTURES = (
        "with a process group in a child process (ProcessGroupBaby...) no step may be committed",
        {
            "torchft.process_group:ProcessGroupBaby": "_get_future() _timeout",
            "torchft.manager:_ManagedWork": "_set_future_callback()",
        },
    )

    # --- servers, closed to strangers: closed_servers.py, parameter_sessions.py, transport.py ---
    # Managers listen on loopback, and are asked through the guards.
    MANAGERS = (
        CLOSED,
        {
            "torchft.manager": "ManagerServer() ManagerClient()",
            "torchft.manager:Manager": "ManagerServer ManagerClient",
            "torchft.manager:ManagerServer": "address() shutdown()",
            "torchft.manager:ManagerClient": "_quorum()",
            "torchft._torchft:QuorumResult": "store_address",
        },
    )
    # Process groups meet in the group's store, and host none of their own.
    PROCESS_GROUPS = (
        CLOSED,
        {"torchft.process_group": "TCPStore ProcessGroup.configure()"},
        {  # torchft 0.3
            "torchft.process_group": "TCPStore _rendezvous()",
            "torchft.process_group:ProcessGroup": """
                reconfigure() get_reconfigure_handle() _handle_id() _global_rank _rendezvous_store
            """,
        },
    )
    # Parameter servers do not listen, and their sessions meet in the group's store.
    PARAMETER_SERVERS = (
        CLOSED,
        {
            "torchft.parameter_server": "_IPv6HTTPServer.get_request() socket.gethostname() urllib.request",
            "torchft.parameter_server:ParameterServer": """
                new_session() address() _handle_session() TCPStore _IPv6HTTPServer urlopen
            """,
        },
    )
    # A group's state is given to groups of this run only, and taken from no other.
    CHECKPOINTS = (
        CLOSED,
        {
            "torchft.checkpointing.http_transport": "HTTPTransport()",
            "torchft.checkpointing.transport:CheckpointTransport": """
                metadata() send_checkpoint() disallow_checkpoint() recv_checkpoint() shutdown()
            """,
        },
    )

    # --- the Manager of a run: run_manager.py ---
    # Groups are compared by digests of their state: comparison.py, buffers.py.
    COMPARE = (
        "groups are not compared (health.compare_every)",
        {
            "torchft.manager:Manager": """
                disallow_state_dict_read() _load_state_dict_fns _quorum_id _step _user_state_dicts
            """,
            "torch.nn.modules.module:Module": "_buffers",
            "torch.optim.optimizer": "register_optimizer_step_pre_hook()",
        },
    )
    # A group that comes back catches up beside the training: catch_up.py.
    BESIDE = (
        "all groups wait for a group that heals (torchft.heal)",
        {
            "torchft.optim:OptimizerWrapper": "step()",
            "torchft.manager:Manager": """
                _checkpoint_transport _connect_timeout _group_rank _group_world_size _manager_state_dict()
                _min_replica_size _participating_replica_rank _participating_replica_world_size _pending_state_dict
                _replica_world_size_mode _step _store _timeout _use_async_quorum _user_state_dicts
            """,
            "torchft._torchft:ManagerClient": "_checkpoint_metadata()",
            "torchft._torchft:QuorumResult": """
                heal max_replica_rank max_step max_world_size recover_dst_replica_ranks recover_src_manager_address
                replica_world_size
            """,
        },
    )
    # Steps are shown, a worker without the training's state takes none, and nobody waits for a dead group.
    MANAGER = (
        "steps, quorums and hangs are not seen, only the Lighthouse keeps a group without the training's state from "
        "taking a step, and survivors of a death may wait for the process group's time-out",
        {
            "torchft.manager:Manager": """
                start_quorum() wait_quorum() allreduce() should_commit() current_step() report_error() errored()
                shutdown() _async_quorum() _apply_pending_state_dict()
                _checkpoint_transport _client _errored _group_rank _healing _participating_replica_world_size
                _pending_state_dict _pg _quorum_future _quorum_id _step _user_state_dicts
            """,
            "torchft.process_group:ProcessGroupWrapper": "abort() _create_pg() _pg",
            "torchft.process_group:ProcessGroupNCCL": "_errored _timeout",
            "torchft.process_group:ProcessGroupBaby": "_p _futures _futures_lock",
            "torchft.process_group": "ProcessGroupGloo create_store_client()",
            "torchft.manager:_ManagedWork": "_work",
            "torch.distributed:ProcessGroup": "_register_backend _set_default_backend",
            "torch.optim.optimizer": "register_optimizer_step_post_hook()",
        },
    )
