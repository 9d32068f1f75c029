"""Sessions: what a Model runs: for each signature of data a traced and planned step or forward pass on its ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from autoshard.api import Planned
from autoshard.core.tensortype import dtype
from autoshard.engines.session import Session
from autoshard.ir.graph import DATA
from autoshard.layout.mesh import Mesh
from autoshard.mindspore.algo_parameters import algorithm
from autoshard.mindspore.communication import get_rank
from autoshard.mindspore.context import (
    FULL_BATCH,
    GRAPH_MODE,
    DatasetStrategy,
    ParallelMode,
    ParallelSettings,
    Settings,
    parallel_settings,
    settings,
)
from autoshard.mindspore.dataset.rows import Row
from autoshard.mindspore.feed import Feed, named_columns, signature
from autoshard.mindspore.gradient_scale import gradient_scale
from autoshard.mindspore.planning import planned_as_set, planned_devices, planned_in_stages
from autoshard.mindspore.stages import check_batch, groups_of, in_stages, micro_batches
from autoshard.pipeline.execute.session import PipelineSession
from autoshard.pipeline.execute.training import StagedSession
from autoshard.pipeline.planning import PlannedPipeline
from autoshard.runtime.comm import Comm
from autoshard.runtime.local import LocalComm
from autoshard.runtime.mpi import default_comm
from autoshard.search.algo_parameters import SearchParameters
from autoshard.trace.arguments import check_count
from autoshard.trace.cell import recomputed
from autoshard.trace.function import Traced, trace
from autoshard.trace.loss_scale import LossScale
from autoshard.trace.parameter import Parameter, cast_all_to
from autoshard.transform.micro.statistics import MICRO_BATCH
from autoshard.transform.rewrites import rewritten_trace
from autoshard.transform.train import train_step
from autoshard.util.errors import ContextError
from autoshard.util.files import check_folder_writable, check_writable
from costmodel import format_count

MAX_DUMPED_RANKS = 64
"""Ranks that one process dumps; beyond that only rank 0's files are written."""
TRAIN, LOSS, RESULTS, PREDICT = "train", "loss", "results", "predict"
AnySession = Session[Planned] | StagedSession[PlannedPipeline]


class Trains(Protocol):
    """What has a network, its loss and its optimizer: a Model."""

    network: Any
    loss_fn: Callable | None
    optimizer: Any
    scaling: LossScale | None
    widens: bool
    own_step: Callable | None


class Sessions:
    """The sessions of a model's network with its loss and optimizer, each made when it is first asked for.

    Attributes:
        engine, device: what runs steps of training.
    """

    def __init__(self, model: Trains) -> None:
        self.model = model
        self.engine, self.device = "numpy", "auto"
        self._known: dict[tuple, AnySession] = {}
        self._latest: tuple[tuple, AnySession] | None = None

    def clear(self) -> None:
        """Forget all: what was traced is out of date."""
        self._known.clear()
        self._latest = None

    @property
    def trained(self) -> Planned | PlannedPipeline | None:
        """What was planned for the last training step; None before there is one."""
        found = [session for key, session in self._known.items() if key[0] == TRAIN]
        return found[-1].planned if found else None

    # -- the ranks, and what they read

    @property
    def parallel(self) -> ParallelSettings:
        """The settings of the context, or of a network that has its own (AutoParallel)."""
        own = getattr(self.model.network, "settings", None)
        return own if isinstance(own, ParallelSettings) else parallel_settings()

    @property
    def comm(self) -> Comm:
        """All ranks. In stand_alone each process trains for itself."""
        return LocalComm(1) if self._alone else default_comm(self._devices)

    @property
    def _alone(self) -> bool:
        return self.parallel.parallel_mode == ParallelMode.STAND_ALONE

    @property
    def _devices(self) -> int:
        return 1 if self._alone else planned_devices(self.parallel)

    @property
    def _mesh(self) -> Mesh:
        """That of all devices; in stages that of one group, between whose ranks data is divided."""
        if self._alone:
            return Mesh.flat(1)
        if in_stages(self.parallel):
            return groups_of(self.parallel, self._devices)[0].mesh
        return self.parallel.mesh or Mesh.flat(self._devices)

    @property
    def _strategy(self) -> DatasetStrategy:
        return FULL_BATCH if self._alone else self.parallel.dataset_strategy

    def rows(self, dataset: Any, when: str) -> Iterator[tuple[Row, Feed]]:
        """The rows that all ranks agree on, with what feeds them."""
        feed = Feed(self.comm, self._mesh, self._strategy, getattr(dataset, "column_names", None), when)
        for row in feed.rows(dataset):
            yield row, feed

    @staticmethod
    def given(session: AnySession, feed: Feed, row: Row) -> Any:
        """A row as a session's steps take it."""
        if isinstance(session, StagedSession):
            return feed.whole(row, session.reading)
        return feed.blocks(session.data, row)

    # -- from rows to programs

    def of(self, kind: str, feed: Feed) -> AnySession:
        """The session for rows like the last one of a feed: to TRAIN, for the LOSS alone, or for RESULTS."""
        now = (kind, settings(), self.parallel, feed.names, feed.types, self.engine, self.device)
        if self._latest is not None and all(one is other for one, other in zip(now, self._latest[0], strict=True)):
            return self._latest[1]  # as in the step before: nothing was set anew, and the row is of the same kind
        session = self._found(kind, feed)
        self._latest = now, session
        return session

    def _found(self, kind: str, feed: Feed) -> AnySession:
        where = (self.engine, self.device) if kind == TRAIN else ("numpy", "auto")
        key = (kind, *self._settings_key(), feed.signature, *where)
        if key not in self._known:
            if kind == TRAIN:
                self._check_files(feed.comm)
            made = {TRAIN: self._trace_step, LOSS: self._trace_loss, RESULTS: self._trace_results}[kind](feed)
            self._known[key] = session = self._session(made, feed.comm, kind == TRAIN, self._strategy, where)
            if kind == TRAIN:
                self._dump(session.planned, feed.comm)
        return self._known[key]

    def predicting(self, inputs: tuple[Any, ...]) -> AnySession:
        """The session for the network's result of such whole inputs."""
        key = (PREDICT, *self._settings_key(), signature(inputs))
        if key not in self._known:
            traced = rewritten_trace(trace(self.model.network, *inputs))
            self._known[key] = self._session(traced, self.comm, False, FULL_BATCH)
        return self._known[key]

    def _session(
        self,
        traced: Traced,
        comm: Comm,
        trains: bool,
        strategy: DatasetStrategy,
        where: tuple[str, str] = ("numpy", "auto"),
    ) -> AnySession:
        states = self._states()
        if not in_stages(self.parallel):
            planned = planned_as_set(traced, self._mesh, settings(), self.parallel, strategy, states)
            return Session(planned, comm, *where)
        parts = micro_batches(self.model.network, self.parallel, trains)
        if not trains:
            parts = _dividing(traced, parts)
        found = planned_in_stages(traced, self.model.network, parts, settings(), self.parallel, states)
        return StagedSession(found, comm, PipelineSession(found, comm, *where))

    def _states(self) -> dict[Parameter, tuple[Parameter, ...]]:
        if self.model.optimizer is None:
            return {}
        return {one: self.model.optimizer.states[id(one)] for one in self.model.optimizer.parameters}

    def _settings_key(self) -> tuple[Settings, ParallelSettings, SearchParameters]:
        if settings().mode != GRAPH_MODE:
            raise ContextError(
                "Model runs whole graphs: set_context(mode=GRAPH_MODE). "
                "For eager computing call the cells on arrays directly"
            )
        return settings(), self.parallel, algorithm()

    def _check_files(self, comm: Comm) -> None:
        """That what is written of a plan can be, before anything is planned."""
        file = self.parallel.strategy_ckpt_save_file
        if file and not self._alone:
            check_writable(file, ContextError, making=True)
        if self._dumps(comm):
            check_folder_writable(settings().save_graphs_path, ContextError)

    @staticmethod
    def _dumps(comm: Comm) -> bool:
        """Whether graphs are saved: processes that train each for itself do not overwrite each other's files."""
        return bool(settings().save_graphs) and not (comm.world == 1 and get_rank())

    def _dump(self, planned: Planned | PlannedPipeline, comm: Comm) -> None:
        if not self._dumps(comm):
            return
        ranks = comm.ranks if comm.world <= MAX_DUMPED_RANKS else comm.ranks[:1]
        planned.dump(settings().save_graphs_path, ranks)

    # -- traces

    def _trace_step(self, feed: Feed) -> Traced:
        parallel = self.parallel
        if self.model.own_step is not None:
            return self._trace_own_step(self.model.own_step, feed)
        scale = gradient_scale(parallel, self._devices, self.model.network, self.model.loss_fn)
        parts = micro_batches(self.model.network, parallel, True)
        rows = {name: of.shape[0] for name, of in zip(feed.names, feed.types, strict=True) if of.rank}
        check_batch(self.model.network, rows, parts)
        given = (self._objective(feed.names), self.model.optimizer, *feed.types)
        again = recomputed(self.model.network)
        parts = 1 if in_stages(parallel) else parts
        return train_step(
            *given, recompute=again, gradient_scale=scale, micro_batches=parts, statistics=MICRO_BATCH,
            loss_scale=self.model.scaling,
        ).traced  # fmt: skip

    def _trace_own_step(self, step: Callable, feed: Feed) -> Traced:
        """A step that takes its gradients and applies its optimizer itself."""
        parallel, name = self.parallel, type(step).__name__
        if parallel.parallel_mode == ParallelMode.DATA_PARALLEL or in_stages(parallel):
            what = "stages" if in_stages(parallel) else "data_parallel"
            raise ContextError(
                f"{name}: a construct of its own takes gradients of the loss over all rows, and {what} cuts the step "
                "before and after them; use parallel_mode='semi_auto_parallel' or 'auto_parallel', or leave "
                "gradients to TrainOneStepCell"
            )
        if micro_batches(self.model.network, parallel, True) != 1:
            raise ContextError(f"{name}: a construct of its own takes the batch whole; leave micro batches out")

        def loss(*columns: Any) -> Any:
            found = step(*columns)
            if isinstance(found, tuple | list | dict):
                raise ContextError(f"{name}: its construct returns a {type(found).__name__}; return the loss alone")
            return found

        traced = trace(named_columns(loss, step, feed.names), *feed.types)
        if not traced.graph.updates:
            raise ContextError(f"{name}: its construct updates no parameter; call self.optimizer(gradients) in it")
        return traced

    def _trace_results(self, feed: Feed) -> Traced:
        """The loss, what the network returns, and the label; of a network alone just what it returns."""
        if self.model.loss_fn is None:
            return self._trace_loss(feed)
        loss_fn, network = self.model.loss_fn, self.model.network

        def results(*columns: Any) -> Any:
            *inputs, label = columns
            found, compared = self._wide(network(*inputs)), self._wide(label)
            return loss_fn(found, compared), found, label

        return rewritten_trace(trace(named_columns(results, self.model.network, feed.names), *feed.types))

    def _trace_loss(self, feed: Feed) -> Traced:
        return rewritten_trace(trace(self._objective(feed.names), *feed.types))

    def _wide(self, found: Any) -> Any:
        """What a loss is given: float32, where the network computes in a narrow type."""
        return cast_all_to(dtype("f32"), found) if self.model.widens else found

    def _objective(self, names: Sequence[str]) -> Callable:
        """A function from a row to the loss, whose arguments are called like the columns."""

        def objective(*columns: Any) -> Any:
            if self.model.loss_fn is None:
                return self.model.network(*columns)
            *inputs, label = columns
            columns_told = format_count(len(columns), "column")
            check_count(
                self.model.network, len(inputs), f"a row of the dataset has {columns_told}, the last is the label"
            )
            return self.model.loss_fn(self._wide(self.model.network(*inputs)), self._wide(label))

        return named_columns(objective, self.model.network, names)


def _dividing(traced: Traced, parts: int) -> int:
    """The most micro batches, up to so many, that divide the rows of all data inputs."""
    graph = traced.graph
    data = (value for value, role in zip(graph.inputs, graph.roles, strict=True) if role == DATA and value.type.rank)
    rows = {value.type.shape[0] for value in data}
    return max(count for count in range(1, parts + 1) if all(size % count == 0 for size in rows))
