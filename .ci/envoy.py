"""Read an Envoy configuration as Envoy's messages: a field that they lack is an error. Needs envoy-data-plane."""

import sys
from pathlib import Path

import envoy_data_plane.envoy.extensions.filters.http.router.v3
import envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3
import envoy_data_plane.envoy.extensions.retry.host.previous_hosts.v3
import envoy_data_plane.envoy.extensions.upstreams.http.v3  # noqa: F401 - types are known once they are imported
import yaml
from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap

Bootstrap.from_dict(yaml.safe_load(Path(sys.argv[1]).read_text()))
