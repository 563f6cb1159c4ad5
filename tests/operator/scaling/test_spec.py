"""spec.scaling as users write it, in plain numbers."""

import pytest

from tidepool_api.scaling import Mode, Scaling, SelectPolicy
from tidepool_operator.scaling.model import (
    SCALE_DOWN_DEFAULT,
    SCALE_UP_DEFAULT,
    Behavior,
    RatePolicy,
    ScalingSpec,
)
from tidepool_operator.scaling.spec import from_api


def test_the_least_that_a_user_writes_gets_the_hpas_behaviour() -> None:
    spec = from_api(Scaling.model_validate({"maxReplicas": 4}))

    assert spec == ScalingSpec(min_replicas=1, max_replicas=4, predicts=True)
    assert (spec.scale_up, spec.scale_down) == (SCALE_UP_DEFAULT, SCALE_DOWN_DEFAULT)
    assert spec.scale_down.stabilization_seconds == 300.0


def test_every_field_arrives_in_its_unit() -> None:
    written = {
        "minReplicas": 0,
        "maxReplicas": 8,
        "mode": "Recommend",
        "targets": {"timeToFirstToken": "1500ms", "timePerOutputToken": "50ms", "kvUtilization": "0.7"},
        "behavior": {
            "scaleUp": {
                "stabilizationWindow": "15s",
                "policies": [
                    {"type": "Pods", "value": 2, "period": "1m"},
                    {"type": "Percent", "value": 50, "period": "30s"},
                ],
                "selectPolicy": "Min",
            },
            "scaleDown": {"stabilizationWindow": "0s", "selectPolicy": "Disabled"},
        },
        "idleAfter": "1h30m",
        "prediction": {"enabled": False, "season": "12h"},
    }

    assert from_api(Scaling.model_validate(written)) == ScalingSpec(
        min_replicas=0,
        max_replicas=8,
        mode=Mode.RECOMMEND,
        kv_utilization=0.7,
        time_to_first_token_seconds=1.5,
        time_per_output_token_seconds=0.05,
        idle_after_seconds=5400.0,
        predicts=False,
        season_seconds=43_200.0,
        scale_up=Behavior(15.0, (RatePolicy(60.0, pods=2), RatePolicy(30.0, percent=50.0)), SelectPolicy.MIN),
        scale_down=Behavior(0.0, SCALE_DOWN_DEFAULT.policies, SelectPolicy.DISABLED),
    )


@pytest.mark.parametrize(("written", "ratio"), [("800m", 0.8), ("0.85", 0.85), ("1", 1.0)])
def test_a_share_may_be_any_quantity(written: str, ratio: float) -> None:
    scaling = Scaling.model_validate({"maxReplicas": 4, "targets": {"kvUtilization": written}})

    assert from_api(scaling).kv_utilization == ratio
