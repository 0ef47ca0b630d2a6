"""Words of a node's going that an admin dismissed: they hold no more, however often they are said, and others do."""

from __future__ import annotations

from arena.domain.commands import DismissNotice
from arena.domain.events import NodeDrainChanged, NodeNoticeChanged, NodeRegistered, SchedulerStarted
from arena.engine.engine import Engine
from arena.policies.registry import make_policy
from arena.sim.run import Simulation
from tests.builders import node_info
from tests.fakes.restarts import restored_from
from tests.machine.test_engine_reclaims import N2, running, word


def test_an_undrain_holds_against_the_same_word_said_again_and_not_against_another() -> None:
    sim = running()
    sim.at(60.0, NodeNoticeChanged(node_id=N2, notice=word("w1")))
    sim.at(61.0, NodeDrainChanged(node_id=N2, drain=False, by="root"))
    sim.at(62.0, NodeRegistered(info=node_info("n2", incarnation="n2-2"), notice=word("w1", 7100.0)))
    sim.at(63.0, NodeNoticeChanged(node_id=N2, notice=word("w1", 7000.0)))
    sim.run(until_s=64.0)
    node = sim.engine.state.nodes[N2]
    assert (node.state.value, node.notice) == ("ready", None)
    assert dismissals(sim) == [(61.0, "w1"), (62.0, "w1"), (63.0, "w1")], "its agent is told each time"
    sim.at(65.0, NodeRegistered(info=node_info("n2", incarnation="n2-3"), notice=word("w2")))
    sim.run(until_s=66.0)
    assert sim.engine.state.nodes[N2].state.value == "drained"


def test_a_word_of_an_older_agent_has_no_name_and_counts_each_time() -> None:
    sim = running()
    sim.at(60.0, NodeNoticeChanged(node_id=N2, notice=word("")))
    sim.at(61.0, NodeDrainChanged(node_id=N2, drain=False, by="root"))
    sim.at(62.0, NodeRegistered(info=node_info("n2", incarnation="n2-2"), notice=word("")))
    sim.run(until_s=63.0)
    assert (sim.engine.state.nodes[N2].state.value, dismissals(sim)) == ("drained", [])


def test_a_drain_of_ones_own_and_its_end_leave_a_dismissed_word_dismissed() -> None:
    sim = running()
    sim.at(60.0, NodeNoticeChanged(node_id=N2, notice=word("w1")))
    sim.at(61.0, NodeDrainChanged(node_id=N2, drain=False, by="root"))
    sim.at(62.0, NodeDrainChanged(node_id=N2, drain=True, by="root", why="new fans"))
    sim.at(63.0, NodeDrainChanged(node_id=N2, drain=False, by="root"))
    sim.at(64.0, NodeRegistered(info=node_info("n2", incarnation="n2-2"), notice=word("w1")))
    sim.run(until_s=65.0)
    assert sim.engine.state.nodes[N2].state.value == "ready"


def test_a_scheduler_that_starts_anew_knows_which_word_was_dismissed() -> None:
    sim = running()
    sim.at(60.0, NodeNoticeChanged(node_id=N2, notice=word("w1")))
    sim.at(61.0, NodeDrainChanged(node_id=N2, drain=False, by="root"))
    sim.run(until_s=62.0)
    again = Engine(make_policy("fcfs"), sim.config, restored_from(sim.steps))
    again.handle(SchedulerStarted(scheduler_version="1", policy="fcfs", policy_version="1"), 63.0)
    again.handle(NodeRegistered(info=node_info("n2"), notice=word("w1")), 64.0)
    assert again.state.nodes[N2].state.value == "ready"


def dismissals(sim: Simulation) -> list[tuple[float, str]]:
    """When an agent was told which word counts no more."""
    return [
        (step.at_s, command.notice_id)
        for step in sim.steps
        for command in step.commands
        if isinstance(command, DismissNotice)
    ]
