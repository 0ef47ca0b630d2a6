"""Shapes of models that cannot be built are refused with the numbers."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from arena.domain.job import ModelSpec

RESNET = {"family": "wide_resnet", "layers": 2, "hidden": 8, "class_count": 2, "group_depths": [2], "norm_groups": 8}
MOE = {"family": "moe", "layers": 1, "hidden": 8, "heads": 2, "expert_count": 2}
VIT = {"family": "vit", "layers": 1, "hidden": 8, "heads": 2, "class_count": 2, "image_size": 9}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({**RESNET, "image_size": 1}, "holds one value"),
        ({**RESNET, "image_size": 4, "group_depths": [1, 2]}, "must sum to layers (2)"),
        ({**RESNET, "image_size": 5, "group_depths": [1, 1]}, "image_size (5) is halved 1 times"),
        ({**RESNET, "image_size": 4, "hidden": 12}, "hidden (12) must be a multiple of norm_groups (8)"),
        ({**MOE, "experts_per_token": 3}, "experts_per_token (3) exceeds expert_count (2)"),
        ({**VIT, "patch_size": 2}, "image_size (9) must be a multiple of patch_size (2)"),
        ({"family": "gpt", "layers": 1, "hidden": 8}, "needs heads"),
        ({"family": "vit", "layers": 1, "hidden": 8, "heads": 2}, "needs image_size, patch_size, class_count"),
    ],
)
def test_a_shape_that_cannot_be_built_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ModelSpec.model_validate(fields)
    assert why in str(caught.value)
