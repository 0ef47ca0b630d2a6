"""What an agent relies on when it forgets an acknowledged attempt: nothing that comes after could launch it again."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import initialize, invariant

from arena.domain.commands import AcknowledgeEnd, LaunchAttempt
from arena.domain.job import JobId
from arena.domain.launch import NodeId
from tests.property.test_engine_stateful import EngineMachine


class AcknowledgingMachine(EngineMachine):
    """Any life of an engine, its commands read in the order in which they are sent."""

    @initialize()
    def begin_reading(self) -> None:
        self.read_count = 0
        self.acknowledged: dict[tuple[NodeId, JobId], int] = {}

    @invariant()
    def an_acknowledged_epoch_is_never_launched_on_its_node_again(self) -> None:
        for step in self.steps[self.read_count :]:
            for command in step.commands:
                match command:
                    case AcknowledgeEnd(node_id=node_id, attempt_id=attempt_id):
                        job_id, _, epoch = attempt_id.rpartition(".")
                        key = node_id, JobId(job_id)
                        self.acknowledged[key] = max(int(epoch), self.acknowledged.get(key, 0))
                    case LaunchAttempt(node_id=node_id, launch=launch):
                        assert launch.epoch > self.acknowledged.get((node_id, launch.job_id), 0), step
                    case _:
                        pass
        self.read_count = len(self.steps)


TestAcknowledgedEnds = AcknowledgingMachine.TestCase
TestAcknowledgedEnds.settings = settings(max_examples=30, stateful_step_count=80, deadline=None)
