"""Every RPC of the contract is served: a generated base answers a forgotten one with "not implemented"."""

from __future__ import annotations

import pytest

from arena_scheduler.services.admin import AdminService
from arena_scheduler.services.agents import AgentService
from arena_scheduler.services.jobs import JobService


@pytest.mark.parametrize("service", [AdminService, AgentService, JobService])
def test_a_service_overrides_every_method_of_its_contract(service: type) -> None:
    [base] = [one for one in service.__mro__ if one.__name__.endswith("Servicer")]
    contract = {name for name, value in vars(base).items() if callable(value) and not name.startswith("_")}
    assert contract
    assert contract <= vars(service).keys()
