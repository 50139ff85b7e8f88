"""Hypothesis for tests of kernels."""

from hypothesis import HealthCheck, settings

several = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
"""Fixtures are the same for all examples; a host that is busy makes inputs slowly."""
