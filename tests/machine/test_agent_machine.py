"""The agent's state machine: each message in each phase."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from arena.domain.launch import AttemptId, NodeId
from arena.domain.records import EndKind, NodeEnd
from arena.errors import InternalError
from arena_agent.journal import Acked, Ended, Launched, LaunchIntent, Refused, Started, StopSent
from arena_agent.machine import (
    PHASE_TRANSITIONS,
    AgentEvent,
    AgentState,
    AttemptPhase,
    Effect,
    EndAcknowledged,
    LaunchAsked,
    LaunchUnreadable,
    RanksUp,
    StartSupervisor,
    StopAsked,
    StopShare,
    SupervisorUp,
    TellEnded,
    TellStarted,
    VerifiedGone,
    Write,
    apply,
    handle,
)
from arena_agent.procfs import ProcessIdentity
from tests.fakes.agent_process import command_launch

NODE = NodeId("n1")
LAUNCH = command_launch("x", epoch=2, master_port=20_000)
NAME = LAUNCH.attempt_id
END = NodeEnd(node_id=NODE, kind=EndKind.FINISHED)

ASKED = LaunchAsked(launch=LAUNCH)
UP = SupervisorUp(attempt_id=NAME, supervisor=ProcessIdentity(pid=7, start_ticks=9))
RANKS = RanksUp(attempt_id=NAME)
SAVE = StopAsked(attempt_id=NAME, mode="save", grace_s=3.0)
LEAVE = StopAsked(attempt_id=NAME, mode="save", grace_s=9.0, left_for="the market")
KILL = StopAsked(attempt_id=NAME, mode="kill", grace_s=0.0)
GONE = VerifiedGone(attempt_id=NAME, end=END, gone_boot_s=1.0)
ACK = EndAcknowledged(attempt_id=NAME)


def after(*events: AgentEvent) -> tuple[AgentState, tuple[Effect, ...]]:
    """The state after some events, and the effects of the last."""
    state, effects = AgentState(node_id=NODE), ()
    for event in events:
        state, effects = handle(state, event)
    return state, effects


def kinds(effects: Iterable[Effect]) -> list[type]:
    return [type(effect.record) if isinstance(effect, Write) else type(effect) for effect in effects]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((ASKED,), [LaunchIntent, StartSupervisor]),
        ((ASKED, UP), [Launched]),
        ((ASKED, UP, RANKS), [Started, TellStarted]),
        ((ASKED, UP, RANKS, SAVE), [StopSent, StopShare]),
        ((ASKED, UP, RANKS, SAVE, KILL), [StopSent, StopShare]),
        ((ASKED, UP, RANKS, KILL, SAVE), []),
        ((ASKED, UP, RANKS, GONE), [Ended, TellEnded]),
        ((ASKED, UP, RANKS, SAVE, GONE), [Ended, TellEnded]),
        ((ASKED, GONE), [Ended, TellEnded]),
        ((ASKED, UP, GONE, ACK), [Acked]),
        ((ASKED, UP, RANKS, LEAVE, SAVE), [StopSent, StopShare]),
        # said twice, late or out of turn
        ((ASKED, ASKED), []),
        ((ASKED, UP, RANKS, ASKED), [TellStarted]),
        ((ASKED, UP, RANKS, RANKS), []),
        ((ASKED, UP, GONE, ASKED), [TellEnded]),
        ((ASKED, UP, GONE, SAVE), [TellEnded]),
        ((ASKED, UP, GONE, GONE), []),
        ((ASKED, UP, GONE, RANKS), []),
        ((ASKED, UP, ACK), []),
        ((ACK,), []),
        ((RANKS,), []),
        ((GONE,), []),
        # a stop overtakes the start
        ((ASKED, SAVE, UP), [Launched]),
        ((ASKED, SAVE, UP, RANKS), [Started, TellStarted]),
        ((KILL,), [Refused, TellEnded]),
        ((KILL, ASKED), [TellEnded]),
        ((KILL, ACK, ASKED), [Refused, TellEnded]),
        ((LaunchUnreadable(attempt_id=NAME, why="?"),), [Refused, TellEnded]),
        ((ASKED, LaunchUnreadable(attempt_id=NAME, why="?")), []),
        ((LaunchAsked(launch=LAUNCH, unfit="dirty"),), [Refused, TellEnded]),
    ],
)
def test_what_is_done_about_each_message(events, expected):
    assert kinds(after(*events)[1]) == expected


def refusal(*events: AgentEvent) -> str:
    _, effects = after(*events)
    ends = [effect.end for effect in effects if isinstance(effect, TellEnded)]
    assert [end.kind for end in ends] == [EndKind.LAUNCH_FAILED]
    return ends[0].message


def asked(job: str, epoch: int, gpu: int = 0, gpus: int = 1) -> LaunchAsked:
    return LaunchAsked(launch=command_launch("x", job=job, epoch=epoch, first_gpu=gpu, gpus=gpus, master_port=20_000))


def test_refusals_say_why():
    assert "epoch 1 of job j is older: this node has seen epoch 2" in refusal(ASKED, UP, GONE, ACK, asked("j", 1))
    assert "epoch 2 of job j is repeated" in refusal(ASKED, UP, GONE, ACK, ASKED)
    assert "attempt j.2 of the same job still lives here" in refusal(ASKED, asked("j", 3, gpu=1))
    assert "device n1/vgpu-0 is held by attempt j.2" in refusal(ASKED, asked("k", 1))
    assert "device n1/vgpu-1 is held by attempt j.3" in refusal(asked("j", 3, gpu=1), asked("k", 1, gpus=2))


def test_a_device_is_held_from_the_intent_to_the_verified_end():
    device = LAUNCH.device_ids[0]
    for events in ((ASKED,), (ASKED, UP), (ASKED, UP, RANKS), (ASKED, UP, RANKS, KILL)):
        assert after(*events)[0].holder(device) == NAME
    assert after(ASKED, UP, RANKS, KILL, GONE)[0].holder(device) is None


def test_a_stop_that_came_first_is_not_undone_by_the_start():
    share = after(ASKED, SAVE, UP, RANKS)[0].shares[NAME]
    assert (share.phase, share.stop_mode, share.stop_grace_s) == (AttemptPhase.STOPPING, "save", 3.0)
    assert share.supervisor == ProcessIdentity(pid=7, start_ticks=9)
    assert share.is_started


def test_a_record_that_cannot_follow_is_an_error_of_ours():
    state, _ = after(ASKED, UP, RANKS)
    with pytest.raises(InternalError, match=r"j\.2 may not go from started to launching"):
        apply(state, Launched(attempt_id=NAME, pid=1, start_ticks=1))
    with pytest.raises(InternalError, match=r"x\.1 is not known"):
        apply(state, Started(attempt_id=AttemptId("x.1")))


def test_every_phase_leads_to_the_end():
    for phase in AttemptPhase:
        assert phase is AttemptPhase.ENDED or AttemptPhase.ENDED in PHASE_TRANSITIONS[phase]
    assert PHASE_TRANSITIONS[AttemptPhase.ENDED] == frozenset()


@pytest.mark.parametrize("then", [(), (SAVE,), (KILL,)])
def test_an_end_tells_that_its_agent_had_it_leave_whoever_asked_after_it(then: tuple[AgentEvent, ...]) -> None:
    state, effects = after(ASKED, UP, RANKS, LEAVE, *then, GONE)
    end = replace(END, left_for="the market")
    assert effects[-1] == TellEnded(attempt_id=NAME, end=end)
    assert state.shares[NAME].end == end
